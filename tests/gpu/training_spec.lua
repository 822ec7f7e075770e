-- Training on a GPU: the losses of the CPU, in every mode of the Trainer.
local gpu = require "gpu"
local redco = require "redco"
local testing = require "testing"

local torch, nn = redco.torch, redco.nn
local test, expect_near = testing.test, gpu.expect_near
local device = gpu.device

-- An epoch of eight steps of a small GPT-2: its losses, and the Trainer. `options` are the
-- Trainer's, and `dropout`, `n_embd`, `workdir` and what `fit` takes.
local function train(where, options)
  local p = options.dropout or 0
  local model = redco.models.from_config({ model_type = "gpt2", vocab_size = 512, n_positions = 64,
    n_embd = options.n_embd or 64, n_layer = 2, n_head = 4, embd_pdrop = p, resid_pdrop = p,
    attn_pdrop = p },
    { generator = torch.Generator(1) })
  local tokens = torch.rand({ 64, 65 }, { generator = torch.Generator(2) }):pow(3):mul(512):long()
  local losses = {}
  local trainer = redco.Trainer {
    deployer = redco.Deployer { seed = 3, verbose = false, device = where,
      workdir = options.workdir },
    params = options.params or model.params, opt_state = options.opt_state,
    last_ckpt_info = options.last_ckpt_info, compute_dtype = options.compute_dtype,
    accumulate_grad_batches = options.accumulate_grad_batches, num_workers = options.num_workers,
    offload_optimizer = options.offload_optimizer,
    collate_fn = function(rows)
      local ids = require "redco.torch".stack(rows)
      return { input_ids = ids:narrow(1, 0, 64), labels = ids:narrow(1, 1, 64) }
    end,
    loss_fn = function(rng, _, params, batch, is_training)
      local loss, count = model.loss(params, batch, { train = is_training, rng = rng })
      losses[#losses + 1] = loss:detach()
      return loss, count
    end,
    optimizer = redco.optim.chain { redco.optim.clip_by_global_norm(1),
      redco.optim.adamw { learning_rate = 3e-3 } },
  }
  local fit = { train_examples = tokens:unbind(0), per_device_batch_size = 8, n_epochs = 1 }
  for key, value in pairs(options.fit or {}) do fit[key] = value end
  trainer:fit(fit)
  for i, loss in ipairs(losses) do losses[i] = loss:item() end
  return losses, trainer
end

local function expect_losses(actual, expected, bound)
  testing.expect_equal(#actual, #expected)
  for i, loss in ipairs(expected) do expect_near("loss of step " .. i, actual[i], loss, bound) end
end

local reference = train("cpu", {})

for name, mode in pairs {
  ["float32"] = { {}, 2e-5 },
  ["micro-batches"] = { { accumulate_grad_batches = 2 }, 2e-5 },
  ["two workers"] = { { num_workers = 2 }, 2e-5 },
  ["bfloat16"] = { { compute_dtype = "bfloat16" }, 5e-3 },
  ["float8"] = { { compute_dtype = "float8", n_embd = 128 }, 5e-3 },
  ["autocast"] = { { compute_dtype = "autocast:bfloat16" }, 5e-3 },
  ["float16 with a scaled loss"] = { { compute_dtype = "float16" }, 5e-3 },
} do
  test("losses of an epoch: " .. name, function()
    local options, bound = unpack(mode)
    local is_other = options.accumulate_grad_batches or options.n_embd
    local expected = is_other and train("cpu", options) or reference
    expect_losses(train(device, options), expected, bound)
  end)
end

test("optimizer states in the memory of the host", function()
  local function bytes(offload)
    local losses, trainer = train(device, { offload_optimizer = offload, n_embd = 256 })
    local in_use = gpu.is_there and torch.cuda.memory_allocated() or 0
    return losses, in_use, trainer:memory().opt_state.here
  end
  local on_device, whole = bytes(false)
  collectgarbage()
  local on_host, less, states = bytes(true)
  expect_losses(on_host, on_device, 1e-6)
  -- Those of vectors stay.
  if gpu.is_there then assert(whole - less > 0.9 * states, whole - less) end
end)

test("dropout draws the CPU's masks", function()
  expect_losses(train(device, { dropout = 0.1 }), train("cpu", { dropout = 0.1 }), 5e-4)
end)

test("a checkpoint goes on on either device", function()
  local ways = { { device, device }, { device, "cpu" }, { "cpu", device },
    { device, device, offload = true } }
  for i, way in ipairs(ways) do
    local workdir = testing.folder() .. "/checkpoint" .. i
    local first = train(way[1], { workdir = workdir, offload_optimizer = way.offload,
      fit = { max_steps = 4, save_last_ckpt = true } })
    local ckpt, info = redco.Deployer { seed = 3, verbose = false, device = way[2],
      workdir = workdir }:load_last_ckpt()
    local second = train(way[2], { workdir = workdir, params = ckpt.params,
      offload_optimizer = way.offload,
      opt_state = ckpt.opt_state, last_ckpt_info = info })
    for _, loss in ipairs(second) do first[#first + 1] = loss end
    expect_losses(first, reference, 5e-5)
  end
end)

test("optimizers take the CPU's steps", function()
  local optim = redco.optim
  for name, maker in pairs { adamw = { optim.adamw, 1e-2 }, adam = { optim.adam, 1e-2 },
    sgd = { optim.sgd, 1e-2 }, lion = { optim.lion, 1e-3 },
    adafactor = { optim.adafactor, 1e-2 } } do
    local x = torch.randn({ 64, 10 }, { generator = torch.Generator(1) })
    local y = x:sum(1, { keepdim = true }):sin()
    local function run(where)
      local trainer = redco.Trainer {
        deployer = redco.Deployer { seed = 1, verbose = false, device = where },
        params = nn.MLP({ 10, 32, 1 }, { generator = torch.Generator(4) }),
        collate_fn = function() return { x = x, y = y } end,
        loss_fn = function(_, _, params, batch)
          return (nn.mlp(params, batch.x) - batch.y):pow(2):mean()
        end,
        optimizer = maker[1] { learning_rate = maker[2] },
      }
      trainer:fit { train_examples = { 1, 2, 3, 4, 5 }, per_device_batch_size = 1, n_epochs = 1 }
      return redco.tree.leaves(trainer.params)
    end
    local expected = run "cpu"
    for i, leaf in ipairs(run(device)) do
      -- Lion steps by the sign, which rounding may turn where the gradient is nearly 0.
      expect_near(name, leaf, expected[i], name == "lion" and 5e-3 or 1e-4)
    end
  end
end)

test("predictions", function()
  local params = nn.MLP({ 4, 8, 2 }, { generator = torch.Generator(1) })
  local examples = torch.randn({ 21, 4 }, { generator = torch.Generator(2) }):unbind(0)
  local function predict(where)
    local predictor = redco.Predictor {
      deployer = redco.Deployer { seed = 0, verbose = false, device = where },
      collate_fn = function(rows) return { x = torch.stack(rows) } end,
      pred_fn = function(_, p, batch) return nn.mlp(p, batch.x) end,
    }
    return torch.stack(predictor:predict { examples = examples, params = params,
      per_device_batch_size = 8 })
  end
  expect_near("predictions", predict(device), predict "cpu", 1e-5)
end)

test("the metrics of a step tell of memory, and a trace has the GPU's kernels", function()
  local workdir = testing.folder() .. "/profile"
  train(device, { workdir = workdir, fit = { profile = { steps = { 2, 4 } } } })
  local file = assert(io.open(workdir .. "/profile_step2-4.json"))
  local _, n_kernels = file:read "*a":gsub('"cat": ?"kernel"', "")
  file:close()
  local metrics
  for line in io.lines(workdir .. "/metrics.jsonl") do metrics = line end
  assert(metrics:find "peak_memory_bytes", metrics)
  if not gpu.is_there then return end
  assert(n_kernels > 100, n_kernels)
  assert(metrics:find "reserved_memory_bytes", metrics)
end)

testing.finish()
