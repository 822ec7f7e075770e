-- compute_dtype = "float16": when the gradients of one process overflow, all of them leave the step
-- out, and go on with half the scale to what plain float64 tensors give. Losses in 16 bits: the
-- weights of micro-batches and the scale of the loss keep all their digits. Products in float8.
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

-- Returns a tensor as products in float8 see it: it is divided by a power of two, so that its
-- largest element is at most `most`.
local function in_float8(t, dtype, most)
  local scale = 2 ^ math.ceil(math.log(t:abs():amax():item() / most) / math.log(2))
  return (t:bfloat16() / scale):to(dtype):float() * scale
end

local wide = { weight = torch.randn({ 128, 160 }, { generator = generator }), examples = {} }
for i = 1, n_examples do
  wide.examples[i] = {
    -- The largest elements are of one process.
    x = torch.randn({ 160 }, { generator = generator }) * (i == 5 and 50 or 1),
    slope = torch.randn({ 128 }, { generator = generator }) * (i == 5 and 50 or 1),
  }
end

local function check_float8(deployer, where)
  test("products in float8 on " .. where, function()
    local all, inputs, outputs = collate(wide.examples), nil, nil
    local x = in_float8(all.x, "float8_e4m3fn", 448)
    local weight = in_float8(wide.weight, "float8_e4m3fn", 448)
    local d_y = in_float8(all.slope / n_examples, "float8_e5m2", 57344)
    local trainer = redco.Trainer {
      deployer = deployer, params = { weight = wide.weight }, collate_fn = collate,
      compute_dtype = "float8", optimizer = redco.optim.sgd { learning_rate = 1 },
      loss_fn = function(_, _, params, examples)
        local y = redco.nn.linear(params, examples.x)
        inputs, outputs = examples.x:full(), y:full()
        return (y * examples.slope):float():sum(1):mean()
      end,
    }
    trainer:train {
      examples = wide.examples, per_device_batch_size = n_examples / deployer.mesh.dp,
    }
    local expected = in_float8(inputs, "float8_e4m3fn", 448):matmul(weight:t())
    expect_close(outputs:float(), expected, 1 / 128, 1e-3)
    local step = d_y:t():matmul(x)
    expect_close(trainer.params.weight:full(), wide.weight - step, 0,
      step:abs():amax():item() / 128)
    -- They are not those of 16 bits.
    assert((expected - inputs:float():matmul(wide.weight:t())):abs():amax():item() > 0.1)
  end)
end

for _, n_model_shards in ipairs { 1, 2 } do
  for zero = 0, 3 do
    local deployer = redco.Deployer {
      seed = 1, n_model_shards = n_model_shards, zero = zero, zero_min_size = 1, verbose = false,
    }
    local dp = deployer.mesh.dp
    check_float8(deployer, ("%dx%d, zero = %d"):format(dp, deployer.mesh.mp, zero))
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
    for _, dtype in ipairs { "bfloat16", "float16", "float32" } do
      local name = ("a loss in %s on %dx%d, zero = %d"):format(dtype, dp, deployer.mesh.mp, zero)
      test(name, function()
        -- bfloat16 rounds 1001 to 1000, and 65536 is infinite in float16.
        local n_tokens, slopes, micro_batch = { 1001, 1 }, { 1, 0 }, 0
        local trainer = redco.Trainer {
          deployer = deployer, params = { weight = torch.zeros { 4 } }, compute_dtype = dtype,
          collate_fn = redco.data.default_collate, accumulate_grad_batches = 2,
          optimizer = redco.optim.sgd { learning_rate = 1 },
          loss_fn = function(_, _, params, examples)
            micro_batch = micro_batch + 1
            local x = examples.x * slopes[micro_batch]
            local loss = (params.weight * x:unsqueeze(1)):sum(1):mean()
            expect_equal(loss.dtype, dtype)
            return loss, n_tokens[micro_batch]
          end,
        }
        local examples = {}
        for i = 1, 4 do examples[i] = { x = torch.ones {} } end
        trainer:setup_running_step { examples = examples, per_device_batch_size = 2 / dp }
        micro_batch = 0
        trainer:train { examples = examples, per_device_batch_size = 2 / dp }
        expect_equal(trainer.step, 1)
        expect_close(trainer.params.weight:full(), torch.full({ 4 }, -1001 / 1002), 0, 1e-6)
      end)
    end
    check("a step", {})
    check("two micro-batches", { accumulate = 2 })
    check("a step of one's own", { step = own_step })
  end
end

testing.finish()
