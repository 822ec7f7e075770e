-- Adapters of other kinds than LoRA, and their first values: DoRA, PiSSA, OLoRA, LoftQ.
local redco = require "redco"
local testing = require "testing"

local lora, torch = redco.lora, redco.torch
local test, expect_close, expect_error = testing.test, testing.expect_close, testing.expect_error

local scratch = testing.folder()

-- W + scaling B A of a nested layer.
local function sum_of(layer)
  local weight = redco.quant.dequantize({ l = layer }).l.weight
  return weight + layer.lora_scaling * layer.lora_B.weight:matmul(layer.lora_A.weight)
end

test("DoRA: the formula, its gradients and its dropout", function()
  local base = redco.nn.Linear(6, 4)
  local x = torch.randn { 3, 6 }
  local layer = lora.add(base, { target_modules = ".*", r = 2, use_dora = true })
  expect_close(redco.nn.linear(layer, x), redco.nn.linear(base, x), 1e-6, 1e-6)
  layer.lora_B.weight = torch.randn { 4, 2 }
  layer.lora_magnitude_vector = torch.randn { 4 }:abs():requires_grad_()
  layer.lora_A.weight = layer.lora_A.weight:detach():requires_grad_()
  local sum = sum_of(layer):detach()
  local factor = layer.lora_magnitude_vector / sum:square():sum { 1 }:sqrt()
  local weight = factor:unsqueeze(1) * sum_of(layer)
  local expected = torch.linear(x, weight, layer.bias)
  local y = redco.nn.linear(layer, x)
  expect_close(y, expected, 1e-5, 1e-5)
  local leaves = { layer.lora_magnitude_vector, layer.lora_A.weight }
  local r = torch.randn { 3, 4 }
  local own = torch.autograd.grad({ (y * r):sum() }, leaves)
  for i, gradient in ipairs(torch.autograd.grad({ (expected * r):sum() }, leaves)) do
    expect_close(own[i], gradient, 1e-4, 1e-5)
  end
  expect_close(redco.nn.linear(lora.merge(layer), x), y, 1e-5, 1e-5)
  layer.lora_dropout = 0.5
  local kept = torch.empty_like(x):bernoulli_(0.5, { generator = torch.Generator(1) }) * 2
  -- As in peft, the layer itself reads what dropout leaves only in the part that DoRA changes.
  local dropped = torch.linear(x, base.weight, base.bias)
    + (factor - 1) * torch.linear(x * kept, base.weight)
    + factor * (torch.linear(x * kept, sum_of(layer) - base.weight))
  expect_close(redco.nn.linear(layer, x, { train = true, rng = torch.Generator(1) }), dropped, 1e-4,
    1e-4)
end)

test("DoRA of a quantized layer is that of its floats, also where it is merged", function()
  local base = redco.quant.quantize({ l = redco.nn.Linear(64, 8) },
    { type = "q8_0", target_modules = { "l" } })
  local params = lora.add(base, { target_modules = { "l" }, r = 2, use_dora = true })
  params.l.lora_B.weight = torch.randn { 8, 2 }
  local floats = redco.quant.dequantize(params)
  local x = torch.randn { 3, 64 }
  local y = redco.nn.linear(params.l, x)
  expect_close(y, redco.nn.linear(floats.l, x), 1e-5, 1e-5)
  expect_close(redco.nn.linear(lora.merge(params).l, x), y, 1e-5, 1e-5)
end)

test("DoRA of the experts of a mixture", function()
  local model = redco.models.from_config({ model_type = "mixtral", vocab_size = 40,
    hidden_size = 16, intermediate_size = 24, num_hidden_layers = 1, num_attention_heads = 2,
    num_key_value_heads = 2, num_local_experts = 4, num_experts_per_tok = 2 },
    { generator = torch.Generator(1) })
  local params = lora.add(model.params, { r = 2, use_dora = true,
    target_modules = "model%.layers%.0%..*experts%.[012]%..*" })
  for name, leaf in pairs(params) do
    if name:find "lora_B" then params[name] = torch.randn_like(leaf) end
    if name:find "lora_magnitude" then params[name] = leaf:detach() * 1.5 end
  end
  local inputs = { input_ids = torch.randint(0, 40, { 2, 9 }) }
  local changed = model(params, inputs)
  assert(not torch.allclose(changed, model(model.params, inputs)))
  expect_close(model(lora.merge(params), inputs), changed, 1e-4, 1e-4)
end)

test("PiSSA and OLoRA move a part of the weight into the adapter", function()
  for _, name in ipairs { "pissa", "olora" } do
    local base, x = redco.nn.Linear(7, 5), torch.randn { 3, 7 }
    local layer = lora.add(base, { target_modules = ".*", r = 2, lora_alpha = 6,
      init_lora_weights = name })
    assert(not torch.allclose(layer.weight, base.weight))
    assert(layer.lora_B.weight:abs():max():item() > 0)
    expect_close(sum_of(layer), base.weight, 1e-5, 1e-6)
    expect_close(redco.nn.linear(layer, x), redco.nn.linear(base, x), 1e-5, 1e-5)
    if name == "pissa" then
      local values = torch.linalg_svdvals(base.weight)
      expect_close(torch.linalg_svdvals(layer.weight):narrow(0, 0, 3), values:narrow(0, 2, 3), 1e-4,
        1e-5)
      expect_close(layer.lora_A.weight:square():sum { 1 } * 3, values:narrow(0, 0, 2), 1e-4, 1e-5)
    end
    expect_error(function() lora.base(layer) end, "has moved a part of")
    layer.lora_B.weight = layer.lora_B.weight:detach() * 2
    lora.save_pretrained(scratch .. "/moved", { l = layer })
    local again = lora.from_pretrained(scratch .. "/moved", { l = base })
    expect_close(redco.nn.linear(again.l, x), redco.nn.linear(layer, x), 1e-5, 1e-5)
    expect_error(function()
      lora.add(base, { target_modules = ".*", r = 6, init_lora_weights = name })
    end, "too small for init_lora_weights = \"" .. name .. "\" with rank 6")
  end
end)

test("PiSSA on a quantized base rounds what is left", function()
  local layer = redco.nn.Linear(128, 96)
  local base = redco.quant.quantize({ l = layer }, { type = "nf4", target_modules = { "l" } })
  local params = lora.add(base, { target_modules = { "l" }, r = 16, init_lora_weights = "pissa" })
  testing.expect_equal(params.l.weight_type, "nf4")
  local before = redco.quant.dequantize(base).l.weight
  local off = (sum_of(params.l) - before):square():mean():sqrt():item()
  local of_rounding = (before - layer.weight):square():mean():sqrt():item()
  assert(off > 0 and off < of_rounding, off .. " " .. of_rounding)
end)

test("LoftQ rounds to nf4 and lessens the loss, more with iterations", function()
  local layer, lost = redco.nn.Linear(128, 96), {}
  local packed = redco.quant.quantize({ l = layer }, { type = "nf4", target_modules = { "l" } })
  lost[1] = (redco.quant.dequantize(packed).l.weight - layer.weight):square():mean():item()
  for i, n in ipairs { 1, 5 } do
    local params = lora.add({ l = layer }, { target_modules = { "l" }, r = 16, lora_alpha = 16,
      init_lora_weights = "loftq", loftq_config = { loftq_bits = 4, loftq_iter = n } })
    testing.expect_equal(params.l.weight_type, "nf4")
    if n == 1 then expect_close(params.l.weight, packed.l.weight, 0, 0) end
    lost[i + 1] = (sum_of(params.l) - layer.weight):square():mean():item()
    lora.save_pretrained(scratch .. "/loftq", params)
    local again = lora.from_pretrained(scratch .. "/loftq", { l = layer })
    expect_close(sum_of(again.l), sum_of(params.l), 0, 0)
    local config = redco.data.json(scratch .. "/loftq/adapter_config.json")
    testing.expect_equal(config.init_lora_weights, "loftq")
    testing.expect_equal(config.loftq_config.loftq_iter, n)
  end
  assert(lost[2] < lost[1] and lost[3] < lost[2], table.concat(lost, " "))
  expect_error(function()
    lora.add(packed, { target_modules = { "l" }, init_lora_weights = "loftq" })
  end, "l is quantized; init_lora_weights = \"loftq\" quantizes floats")
end)

test("initial values that are not known", function()
  local function add(options)
    options.target_modules = ".*"
    return function() lora.add(redco.nn.Linear(4, 4), options) end
  end
  expect_error(add { init_lora_weights = "eva" }, "init_lora_weights = eva is not one of true")
  expect_error(add { loftq_config = {} }, "loftq_config is for init_lora_weights = \"loftq\"")
  expect_error(add { init_lora_weights = "loftq", loftq_config = { loftq_bits = 8 } },
    "loftq_config: loftq_bits = 8 is not supported")
  local layer = lora.add(redco.nn.Linear(400, 4), { target_modules = ".*", r = 4,
    init_lora_weights = "gaussian", generator = torch.Generator(1) })
  assert(math.abs(layer.lora_A.weight:square():mean():sqrt():item() - 0.25) < 0.02)
end)

testing.finish()
