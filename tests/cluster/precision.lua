-- compute_dtype = "float16": when the gradients of one process overflow, all of them leave the step
-- out, and go on with half the scale to what plain float64 tensors give.
local redco = require "redco"
local testing = require "testing"

local torch = redco.torch
local test, expect_close, expect_equal = testing.test, testing.expect_close, testing.expect_equal

local generator = torch.Generator(3)
local n_examples, n_in, n_out = 16, 6, 10
local initial = torch.randn({ n_out, n_in }, { generator = generator })
local usual = {}
for i = 1, n_examples do
  usual[i] = {
    x = torch.randn({ n_in }, { generator = generator }),
    slope = torch.randn({ n_out }, { generator = generator }),
  }
end
-- One example whose gradient is too large for float16, in one row of the weight alone: that of one
-- process, whichever way the examples or the weight are split.
local unusual = { unpack(usual) }
unusual[5] = { x = torch.full({ n_in }, 6e4), slope = torch.zeros { n_out } }
unusual[5].slope[n_out - 1] = 1

local function collate(batch)
  local x, slope = {}, {}
  for i, example in ipairs(batch) do x[i], slope[i] = example.x, example.slope end
  return { x = torch.stack(x), slope = torch.stack(slope) }
end

-- Its gradient by row i of the weight is the mean of slope_i x.
local function loss_of(params, batch)
  local dtype = params.weight.dtype
  local y = batch.x:to(dtype):matmul(params.weight:t())
  return (y * batch.slope:to(dtype)):float():sum(1):mean()
end

local function own_step(_, _, batch, defaults)
  local loss, gradients = defaults.value_and_grad(function(params)
    return loss_of(params, batch)
  end)
  return { loss = loss, norm = defaults.apply_gradients(gradients) }
end

local batch = collate(usual)
local gradient = batch.slope:t():matmul(batch.x) / n_examples

for _, n_model_shards in ipairs { 1, 2 } do
  for zero = 0, 3 do
    local deployer = redco.Deployer {
      seed = 1, n_model_shards = n_model_shards, zero = zero, zero_min_size = 1, verbose = false,
    }
    local dp = deployer.mesh.dp
    local function check(name, options)
      test(("%s on %dx%d, zero = %d"):format(name, dp, deployer.mesh.mp, zero), function()
        local trainer = redco.Trainer {
          deployer = deployer, params = { weight = initial }, collate_fn = collate,
          loss_fn = function(_, _, params, examples) return loss_of(params, examples) end,
          optimizer = redco.optim.sgd { learning_rate = 0.5 }, compute_dtype = "float16",
          loss_scale = { scale = 512 }, train_step_fn = options.step,
          accumulate_grad_batches = options.accumulate,
        }
        local size = n_examples / dp / (options.accumulate or 1)
        trainer:train { examples = unusual, per_device_batch_size = size }
        expect_equal(trainer.step, 0)
        expect_equal(trainer.state.loss_scale.scale, 256)
        expect_equal(trainer.state.loss_scale.good_steps, 0)
        expect_close(trainer.params.weight:full(), initial, 0, 0)
        trainer:train { examples = usual, per_device_batch_size = size }
        expect_equal(trainer.step, 1)
        expect_equal(trainer.state.loss_scale.scale, 256)
        expect_close(trainer.params.weight:full(), initial - 0.5 * gradient, 0, 2e-3)
      end)
    end
    check("a step", {})
    check("two micro-batches", { accumulate = 2 })
    check("a step of one's own", { step = own_step })
  end
end

testing.finish()
