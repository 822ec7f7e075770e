-- Stages of several chunks train as one process. In two or four processes.
local redco = require "redco"
local testing = require "testing"
local torch = require "redco.torch"

local nn, test = redco.nn, testing.test
local n_processes = tonumber(os.getenv "WORLD_SIZE")
local width, n_rows, n_blocks = 6, 10, 9

local function randn(generator, shape)
  return torch.randn(shape, { generator = generator, dtype = "float64" })
end

local function new_params()
  local generator, params = torch.Generator(3), { blocks = {} }
  params.tied = randn(generator, { width, width })
  for i = 1, n_blocks do params.blocks[i] = { weight = randn(generator, { width, width }) / 3 } end
  return params
end

local function rows()
  local generator, examples = torch.Generator(5), {}
  for i = 1, n_rows do examples[i] = randn(generator, { width }) end
  return examples
end

local function block(p, x, rng)
  return x + nn.dropout(torch.tanh(nn.linear(p, x)), 0.2, { train = true, rng = rng })
end

-- A weight at both ends, dropout, numbers of math.random, and a metric of a block in the middle.
-- With `inside`, a function of x, the number of the block, and the batch.
local function loss_of(rng, params, batch, inside)
  local x, middle = torch.matmul(batch.x, params.tied), nil
  for i, p in ipairs(params.blocks) do
    x = nn.block(block, p, x, rng)
    if inside then x = inside(x, i, batch) or x end
    if i == 4 then middle = (x * x):mean() end
  end
  local loss = (torch.matmul(x, params.tied:t()) ^ 2):mean() * (1 + math.random())
  return loss, nil, { middle = middle, plain = batch.x:mean() }
end

local function trainer_of(deployer, inside, options)
  local given = {
    deployer = deployer, params = new_params(), compute_dtype = "float64",
    collate_fn = function(examples)
      local x = torch.stack(examples)
      return { x = x, shift = x:sign() }
    end,
    loss_fn = function(rng, _, params, batch) return loss_of(rng, params, batch, inside) end,
    optimizer = redco.optim.chain { redco.optim.clip_by_global_norm(1),
      redco.optim.adamw { learning_rate = 0.1 } },
  }
  for key, value in pairs(options or {}) do given[key] = value end
  return redco.Trainer(given)
end

-- Returns the metrics of two steps of 10 examples, two at a time, and the parameters.
local function trained(deployer, inside, options)
  local trainer = trainer_of(deployer, inside, options)
  local numbers = {}
  trainer:fit { train_examples = rows(), n_epochs = 2, global_batch_size = n_rows,
    per_device_batch_size = 2 / deployer.mesh.dp, on_step = function(step)
      for _, name in ipairs { "loss", "middle", "plain", "grad_norm" } do
        numbers[#numbers + 1] = step.metrics[name]
      end
    end }
  local params = {}
  for i, param in ipairs(redco.tree.leaves(trainer.params)) do params[i] = param:full() end
  return torch.tensor(numbers, { dtype = "float64" }), params, trainer
end

local function deployer_of(options)
  options.seed, options.verbose, options.zero_min_size = 1, false, 16
  return redco.Deployer(options)
end

-- A Deployer made there has the seed of the others.
local oracle = deployer_of({}):alone(function()
  local numbers, params = trained(deployer_of {})
  return { numbers = numbers, params = params }
end)[1]

local layouts = {
  [2] = { { n_chunks_per_stage = 2 }, { n_chunks_per_stage = 4 },
    { n_chunks_per_stage = 2, recompute = "blocks" } },
  [4] = { { n_chunks_per_stage = 2 }, { n_chunks_per_stage = 2, zero = 1 },
    { n_chunks_per_stage = 3, zero = 2 }, { n_chunks_per_stage = 2, zero = 3 },
    { n_chunks_per_stage = 2, n_pipeline_stages = 4, recompute = "selective" } },
}
for _, options in ipairs(layouts[n_processes]) do
  local words = {}
  for key, value in pairs(options) do words[#words + 1] = key .. " = " .. value end
  table.sort(words)
  local recompute = options.recompute
  options.recompute = nil
  options.n_pipeline_stages = options.n_pipeline_stages or 2
  test("trains as one process: " .. table.concat(words, ", "), function()
    local numbers, params = trained(deployer_of(options), nil, { recompute = recompute })
    testing.expect_close(numbers, oracle.numbers, 1e-6, 1e-6)  -- metrics are read as float32
    for i, param in ipairs(params) do
      testing.expect_close(param, oracle.params[i], 1e-11, 1e-11)
    end
  end)
end

test("chunk i is on stage i % n, with its blocks", function()
  local deployer = deployer_of { n_pipeline_stages = n_processes, n_chunks_per_stage = 2 }
  local _, _, trainer = trained(deployer)
  local last = 0
  for _, p in ipairs(trainer.params.blocks) do
    local chunk = tonumber(p.weight:placement().pp:match "on_rank%((%d+)%)")
    assert(chunk == last or chunk == last + 1, "the blocks are not consecutive")
    last = chunk
    testing.expect_equal(p.weight:to_local():size(0),
      chunk % n_processes == deployer.process_id and width or 0)
  end
  testing.expect_equal(last, 2 * n_processes - 1)
  assert(tostring(deployer):find("n_chunks_per_stage = 2", 1, true))
end)

-- An error of the training with `inside`.
local function expect_failure(inside, message)
  local deployer = deployer_of { n_pipeline_stages = n_processes, n_chunks_per_stage = 2 }
  testing.expect_error(function() trained(deployer, inside) end, message)
end

test("a loss_fn that does not do the same each time", function()
  local message = "did not do the same each time"
  local n_calls = 0
  expect_failure(function(x, i)
    if i == 1 then n_calls = n_calls + 1 end
    if i == 2 then return x * n_calls end
  end, message)
  local kept = torch.zeros({ width }, { dtype = "float64" })
  expect_failure(function(x, i, batch)
    if i == 1 then kept:add_(batch.x:mean(0)) end
    if i == 2 then return x + kept end
  end, message)
  local generator = torch.Generator(1)
  expect_failure(function(x, i)
    if i == 2 then return x + randn(generator, x.shape) end
  end, message)
end)

test("what a loss_fn writes to its batch, other calls do not see", function()
  local function inside(x, i, batch)
    if i == 2 then return x + batch.shift:add_(1) end
  end
  local expected = deployer_of({}):alone(function()
    return (trained(deployer_of {}, inside))
  end)[1]
  local deployer = deployer_of { n_pipeline_stages = n_processes, n_chunks_per_stage = 2 }
  testing.expect_close((trained(deployer, inside)), expected, 1e-6, 1e-6)
end)

test("a parameter that the loss_fn writes", function()
  local deployer = deployer_of { n_pipeline_stages = n_processes, n_chunks_per_stage = 2 }
  local trainer = trainer_of(deployer, nil, { loss_fn = function(rng, _, params, batch)
    torch.no_grad(function() params.tied:mul_(2) end)
    return loss_of(rng, params, batch)
  end })
  testing.expect_error(function()
    trainer:train { examples = rows(), per_device_batch_size = n_rows }
  end, "loss_fn writes to a parameter")
end)

test("too few blocks, and chunks without stages", function()
  local deployer = deployer_of { n_pipeline_stages = n_processes, n_chunks_per_stage = 5 }
  testing.expect_error(function() trained(deployer) end, ("n_pipeline_stages = %d, "
    .. "n_chunks_per_stage = 5: the function has 9 blocks (redco.nn.block), and each of the %d "
    .. "chunks needs one"):format(n_processes, 5 * n_processes))
  testing.expect_error(function() deployer_of { n_chunks_per_stage = 2 } end,
    "n_chunks_per_stage = 2 divides the stages of a pipeline: give n_pipeline_stages, too")
  testing.expect_error(function()
    deployer_of { n_pipeline_stages = n_processes, n_chunks_per_stage = 0 }
  end, "n_chunks_per_stage = 0 must be positive")
end)

test("evaluations and predictions pass through all chunks", function()
  local deployer = deployer_of { n_pipeline_stages = n_processes, n_chunks_per_stage = 2 }
  local x = torch.stack(rows())
  local function plain_loss(params, batch)
    local y = torch.matmul(batch.x, params.tied)
    for _, p in ipairs(params.blocks) do
      y = nn.block(function(q, h) return h + torch.tanh(nn.linear(q, h)) end, p, y)
    end
    return torch.matmul(y, params.tied:t())
  end
  local expected = plain_loss(new_params(), { x = x })
  local trainer = trainer_of(deployer, nil, { loss_fn = function(_, _, params, batch)
    return (plain_loss(params, batch) ^ 2):mean()
  end })
  testing.expect_close(torch.tensor(trainer:eval_loss { examples = rows(),
    per_device_batch_size = n_rows }), (expected ^ 2):mean():float(), 1e-6, 1e-6)
  local predictor = redco.Predictor {
    deployer = deployer, collate_fn = function(e) return { x = torch.stack(e) } end,
    pred_fn = function(_, params, batch) return plain_loss(params, batch) end,
  }
  local preds = predictor:predict { examples = rows(), params = new_params(),
    per_device_batch_size = n_rows }
  testing.expect_close(torch.stack(preds), expected, 1e-12, 1e-12)
end)

testing.finish()
