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
  return linear("down", y * weights:unsqueeze(-1)):sum { 1 }
end

local function loss_of(params, x) return (mixture(params, x) * x):sum() end

local function deployer_of(options)
  options.seed, options.verbose, options.zero_min_size = 1, false, 16
  return redco.Deployer(options)
end

-- One step of training with these options has the loss, the gradients and the parameters of plain
-- tensors. Returns what the step sends, and the trainer.
local function expect_same(options, params, change)
  local x = randn(torch.Generator(5), { n_tokens, size })
  local deployer = deployer_of(options)
  local function loss_fn(p, rows) return loss_of(change and change(p) or p, rows) end
  local loss, gradients = redco.value_and_grad(function(p) return loss_fn(p, x) end)(params)
  local expected = redco.tree.map(function(param, gradient)
    return param - 0.1 * gradient
  end, params, gradients)
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

if n_processes == 2 then
  test("what a step sends", function()
    local n = 4
    local deployer = deployer_of { n_expert_shards = 2 }
    local generator = torch.Generator(7)
    local rows = {}
    for i = 1, n_tokens do rows[i] = randn(generator, { size }) end
    local trainer = redco.Trainer {
      deployer = deployer, params = new_params(n),
      collate_fn = function(given) return { x = torch.stack(given) } end,
      loss_fn = function(_, _, p, batch) return loss_of(p, batch.x) end,
      optimizer = redco.optim.sgd { learning_rate = 0 }, compute_dtype = "float64",
    }
    local function step()
      trainer:train { examples = rows, per_device_batch_size = n_tokens / 2 }
    end
    step()
    -- The choices of this process whose expert is on the other one.
    local own = torch.stack(rows):narrow(0, deployer.process_id * n_tokens / 2, n_tokens / 2)
    local router = trainer.params.router:full()
    local _, numbers = own:matmul(router:t()):topk(n_chosen, -1)
    local is_first = numbers:lt(n / 2):sum():item()
    local away = deployer.process_id == 0 and n_tokens / 2 * n_chosen - is_first or is_first
    print(away, is_first)
    local before = redco.sharding_counters().moves
    local found = traffic.sent("ep", step)
    for _, m in ipairs(redco.sharding_counters().moves) do
      local c, b = m.calls, m.bytes
      for _, o in ipairs(before) do if o.what == m.what and o.cause == m.cause and o.line == m.line and o.kind == m.kind and o.group == m.group then c = c - o.calls; b = b - o.bytes end end
      if c > 0 then print(m.group, m.kind, m.cause, m.what, m.line, c, b) end
    end
    for _, kind in ipairs(traffic.kinds) do print(kind, found[kind].count, found[kind].bytes) end
    local _ = element
  end)
end

testing.finish()
