-- Quantized weights on a GPU: their numbers, products, adapters, mixtures and tokens.
local gpu = require "gpu"
local native = require "redco.native"
local redco = require "redco"
local testing = require "testing"

local torch, lora, quant = redco.torch, redco.lora, redco.quant
local test, expect_near, expect_equal = testing.test, gpu.expect_near, testing.expect_equal
local device = gpu.device
local generator = torch.Generator(1)

local function random(...) return torch.randn({ ... }, { generator = generator }) end

for _, type in ipairs(quant.types()) do
  local weight = random(72, 512)
  local blocks = native.quantize(weight, type.name)
  local on_device = blocks:to(device)

  test(type.name .. ": the numbers and the rounding of the CPU", function()
    for _, dtype in ipairs { "float32", "bfloat16", "float16", "float64" } do
      expect_equal(native.dequantize(on_device, type.name, dtype):cpu()
        == native.dequantize(blocks, type.name, dtype), true)
    end
    expect_equal(native.quantize(weight:to(device), type.name):cpu() == blocks, true)
    local part = on_device:narrow(0, 3, 5):narrow(1, 1, 1)
    expect_equal(native.dequantize(part, type.name):cpu()
      == native.dequantize(blocks:narrow(0, 3, 5):narrow(1, 1, 1), type.name), true)
  end)

  test(type.name .. ": products of few and of many rows, and their gradients", function()
    local dense, bias = native.dequantize(blocks, type.name, "float64"), random(72):double()
    for _, rows in ipairs { 0, 1, 4, 7, 16, 17, 300 } do
      local x, r = random(rows, 512):double(), random(rows, 72):double()
      for dtype, bound in pairs { float64 = 1e-12, float32 = 2e-6, bfloat16 = 1e-2,
          float16 = 2e-3 } do
        local given, own_bias = x:to(dtype):to(device), bias:to(dtype):to(device)
        local y = native.quantized_linear(given, on_device, type.name, own_bias)
        expect_near(("%d rows in %s"):format(rows, dtype), y, torch.linear(x, dense, bias), bound)
        local leaf = given:detach():requires_grad_()
        local product = native.quantized_linear(leaf, on_device, type.name)
        product:backward(r:to(dtype):to(device))
        expect_near(("the gradient of %d rows in %s"):format(rows, dtype), leaf.grad,
          r:matmul(dense), bound)
      end
    end
  end)
end

test("a row has the same values among others", function()
  local blocks = native.quantize(random(64, 1024), "q4_k"):to(device)
  local x = random(9, 1024):to(device)
  local all = native.quantized_linear(x, blocks, "q4_k")
  for i = 0, 8 do
    expect_equal(native.quantized_linear(x:narrow(0, i, 1), blocks, "q4_k")
      == all:narrow(0, i, 1), true)
  end
end)

local function new_model(model_type, more)
  local config = { model_type = model_type, vocab_size = 96, hidden_size = 64,
    intermediate_size = 128, num_hidden_layers = 2, num_attention_heads = 4,
    num_key_value_heads = 2 }
  for key, value in pairs(more or {}) do config[key] = value end
  return redco.models.from_config(config, { generator = torch.Generator(2) })
end

test("adapters of a quantized model train as on the CPU", function()
  local tokens = torch.arange(8 * 16):remainder(96):reshape { 8, 16 }
  local function losses_on(where, dtype)
    local model, losses = new_model "llama", {}
    local packed = quant.quantize(model.params, { type = "nf4",
      target_modules = { "q_proj", "k_proj", "v_proj", "o_proj", "down_proj" } })
    local trainer = redco.Trainer {
      deployer = redco.Deployer { seed = 1, verbose = false, device = where },
      params = lora.add(packed, { target_modules = { "q_proj", "down_proj" }, r = 4,
        generator = torch.Generator(3) }),
      optimizer = lora.freeze_base(redco.optim.adamw { learning_rate = 1e-2 }),
      compute_dtype = dtype, collate_fn = redco.data.default_collate,
      loss_fn = function(...)
        local loss, count = model.loss_fn(...)
        losses[#losses + 1] = loss:detach()
        return loss, count
      end,
    }
    local rows = {}
    for i = 0, 7 do rows[i + 1] = { input_ids = tokens[i], labels = tokens[i]:roll(-1) } end
    trainer:fit { train_examples = rows, per_device_batch_size = 4, n_epochs = 4 }
    for i, loss in ipairs(losses) do losses[i] = loss:item() end
    return losses
  end
  local expected = losses_on "cpu"
  expect_equal(expected[#expected] < expected[1], true)
  for dtype, bound in pairs { float32 = 2e-5, bfloat16 = 1e-2 } do
    local losses = losses_on(device, dtype)
    expect_equal(#losses, #expected)
    for i, loss in ipairs(losses) do
      expect_near(("%s, step %d"):format(dtype, i), loss, expected[i], bound)
    end
  end
end)

test("packed models and mixtures give the CPU's logits and tokens", function()
  for model_type, of in pairs {
    llama = { layers = { "gate_proj", "up_proj", "down_proj" } },
    mixtral = { layers = { "w1", "w2", "w3" },
      config = { num_local_experts = 4, num_experts_per_tok = 2 } },
  } do
    local model = new_model(model_type, of.config)
    local packed = quant.quantize(model.params, { type = "q8_0", target_modules = of.layers })
    local ids = torch.arange(12):reshape { 2, 6 }
    local params, inputs = gpu.on(device, packed), { input_ids = ids:to(device) }
    expect_near(model_type, model(params, inputs), model(packed, { input_ids = ids }), 2e-5)
    local options = { max_new_tokens = 8, min_new_tokens = 8, pad_token_id = 0 }
    expect_equal(model.generate(params, inputs, options):cpu()
      == model.generate(packed, { input_ids = ids }, options), true)
  end
end)

testing.finish()
