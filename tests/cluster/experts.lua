-- Expert shards: mixtures whose experts are on several processes, and what they send. What plain
-- tensors give is expected. In two or four processes.
local redco = require "redco"
local testing = require "testing"
local torch = require "redco.torch"
local traffic = require "traffic"

local test = testing.test
local n_processes = tonumber(os.getenv "WORLD_SIZE")
local n_tokens, size, inner, n_chosen = 24, 6, 10, 2
local element = 8  -- bytes

local function randn(generator, shape)
  return torch.randn(shape, { generator = generator, dtype = "float64" })
end

-- The parameters of a mixture of n experts: a weight for each, or stacks.
local function new_params(n, is_stacked)
  local generator = torch.Generator(3)
  local params = { router = randn(generator, { n, size }), gate = {}, up = {}, down = {} }
  for i = 1, n do
    params.gate[i] = randn(generator, { inner, size }) / 3
    params.up[i] = randn(generator, { inner, size }) / 3
    params.down[i] = randn(generator, { size, inner }) / 3
  end
  if is_stacked then
    for _, part in ipairs { "gate", "up", "down" } do params[part] = torch.stack(params[part]) end
  end
  return params
end

local function list(weights) return torch.is_tensor(weights) and weights:unbind(0) or weights end

local function mixture(params, x)
  local scores = redco.nn.linear({ weight = params.router }, x):softmax(-1)
  local weights, numbers = scores:topk(n_chosen, -1)
  local function linear(part, y) return redco.nn.grouped_linear(y, numbers, list(params[part])) end
  local y = torch.silu(linear("gate", x)) * linear("up", x)
  return linear("down", y * weights:unsqueeze(-1)):sum { 1 }, numbers
end

local function loss_of(params, x)
  local y = mixture(params, x)
  return (y * x):sum()
end

local function deployer_of(options)
  options.seed, options.verbose, options.zero_min_size = 1, false, 16
  return redco.Deployer(options)
end

-- One step of training with these options has the loss, the gradients and the parameters of plain
-- tensors, which `whole` are if params are sharded. Returns the trainer.
local function expect_same(options, params, change, whole)
  local x = randn(torch.Generator(5), { n_tokens, size })
  local deployer = deployer_of(options)
  local function loss_fn(p, rows) return loss_of(change and change(p) or p, rows) end
  local plain = whole or params
  local loss, gradients = redco.value_and_grad(function(p) return loss_fn(p, x) end)(plain)
  local expected = redco.tree.map(function(param, gradient)
    return param - 0.1 * gradient
  end, plain, gradients)
  local rows = {}
  for i = 1, n_tokens do rows[i] = x[i - 1] end
  local trainer = redco.Trainer {
    deployer = deployer, params = redco.tree.map(torch.clone, params),
    collate_fn = function(given) return { x = torch.stack(given) } end,
    loss_fn = function(_, _, p, batch) return loss_fn(p, batch.x) end,
    train_step_fn = function(_, _, batch, defaults)
      local here, found = defaults.value_and_grad(function(p) return loss_fn(p, batch.x) end)
      testing.expect_close(here:full(), loss, 1e-9, 1e-9)
      local leaves = redco.tree.leaves(found)
      for i, wanted in ipairs(redco.tree.leaves(gradients)) do
        testing.expect_close(leaves[i]:full(), wanted, 1e-9, 1e-9)
      end
      return { loss = here, norm = defaults.apply_gradients(found) }
    end,
    optimizer = redco.optim.sgd { learning_rate = 0.1 }, compute_dtype = "float64",
  }
  local mesh = deployer.mesh
  trainer:train { examples = rows,
    per_device_batch_size = n_tokens / mesh.dp / mesh.ep / mesh.dp_replicate }
  redco.tree.map(function(param, wanted)
    testing.expect_close(param:full(), wanted, 1e-9, 1e-9)
  end, trainer.params, expected)
  return trainer
end

local layouts = n_processes == 2 and { { n_expert_shards = 2 } } or {
  { n_expert_shards = 4 }, { n_expert_shards = 2, n_model_shards = 2 },
  { n_expert_shards = 2, zero = 1 }, { n_expert_shards = 2, zero = 3 },
}

for _, options in ipairs(layouts) do
  local words = {}
  for key, value in pairs(options) do words[#words + 1] = key .. " = " .. value end
  table.sort(words)
  for _, is_stacked in ipairs { false, true } do
    -- Numbers of experts that the processes divide, and do not; and fewer than processes.
    for _, n in ipairs { 8, 5, 3 } do
      test(("%d experts%s, %s"):format(n, is_stacked and " in stacks" or "",
        table.concat(words, ", ")), function()
        local trainer = expect_same(redco.tree.map(function(v) return v end, options),
          new_params(n, is_stacked))
        local weight = is_stacked and trainer.params.gate or trainer.params.gate[1]
        testing.expect_equal(weight:placement().ep,
          is_stacked and "shard(0)" or n < options.n_expert_shards and "on_rank(1)" or "on_rank(0)")
      end)
    end
  end
end

test("a weight that all experts share is whole", function()
  local params = new_params(4)
  params.up[4] = nil
  local trainer = expect_same({ n_expert_shards = n_processes }, params, function(p)
    local up = { p.up[1], p.up[2], p.up[2], p.up[3] }
    return { router = p.router, gate = p.gate, up = up, down = p.down }
  end)
  testing.expect_equal(trainer.params.up[2]:placement().ep, nil)
end)

-- A step sends to other processes rows of each choice to its expert and back, forward and
-- backward, and nothing else of the size of a weight.
if n_processes == 2 then
  test("what a step sends", function()
    local n, generator, numbers = 4, torch.Generator(7), nil
    local deployer, rows = deployer_of { n_expert_shards = 2 }, {}
    for i = 1, n_tokens do rows[i] = randn(generator, { size }) end
    local trainer = redco.Trainer {
      deployer = deployer, params = new_params(n), compute_dtype = "float64",
      collate_fn = function(given) return { x = torch.stack(given) } end,
      loss_fn = function(_, _, p, batch)
        local y
        y, numbers = mixture(p, batch.x)
        return (y * batch.x):sum()
      end,
      optimizer = redco.optim.sgd { learning_rate = 0.1 },
    }
    local function step()
      trainer:train { examples = rows, per_device_batch_size = n_tokens / 2 }
    end
    step()
    local found = traffic.sent("ep", step).all_to_all
    local is_mine = numbers:to_local():ge(n / 2):eq(deployer.process_id == 1)
    local away = is_mine:logical_not():sum():item()
    local of_other = redco.shard(torch.tensor { away }:expand { 2, 1 }, { ep = 0 }):full()
      [1 - deployer.process_id]:item()
    -- Of this process: x, factors, gradients of results; of the other: results, and gradients of
    -- factors.
    local bytes = element * (away * (size + 1 + size) + of_other * (size + 1)) + n * element / 2
    testing.expect_equal(found.count, 6)
    testing.expect_equal(found.bytes, bytes)
  end)
end

test("parameters of one layout are taken by another", function()
  local params = new_params(5)
  local trainer = expect_same({ n_expert_shards = n_processes }, params)
  local whole = redco.tree.map(function(param) return param:full() end, trainer.params)
  expect_same({ n_model_shards = n_processes }, trainer.params, nil, whole)
end)

test("a number that does not divide the processes", function()
  testing.expect_error(function() deployer_of { n_expert_shards = 3 } end,
    ("n_expert_shards = 3 must divide %d, the number of copies"):format(n_processes))
  local deployer = deployer_of { n_expert_shards = n_processes }
  testing.expect_equal(deployer.mesh.ep, n_processes)
  testing.expect_error(function() redco.shard(torch.zeros(2), { ep = { rank = n_processes } }) end,
    ("ep has %d ranks"):format(n_processes))
end)

test("a write to one weight of a stack reaches the stack", function()
  redco.Deployer { n_expert_shards = n_processes, seed = 1, verbose = false }
  local expected = randn(torch.Generator(4), { 2 * n_processes + 1, 3, 2 })
  local stack = redco.shard(expected:clone(), { ep = 0 })
  for _, i in ipairs { 1, n_processes + 2 } do
    for _, whole in ipairs { expected, stack } do whole:unbind(0)[i]:fill_(i) end
  end
  assert(torch.equal(stack:full(), expected))
end)

testing.finish()
