-- Mixtures of experts: products with weights chosen for each row, adapters, and the metrics of
-- training. models_spec.lua compares the models with transformers.
local native = require "redco.native"
local redco = require "redco"
local regression = require "regression"
local testing = require "testing"

local lora, torch = redco.lora, redco.torch
local test, expect_close = testing.test, testing.expect_close

local generator = torch.Generator(1)
local function random(...)
  return torch.randn({ ... }, { generator = generator, dtype = "float64" })
end

local numbers = torch.tensor { { 0, 2 }, { 2, 1 }, { 0, 1 }, { 2, 0 }, { 0, 2 } }
local n_weights, unused = 4, 3

-- The same by all products.
local function by_all(x, weights)
  if x:dim() == 2 then x = x:unsqueeze(1) end
  local sum = 0
  for i, weight in ipairs(weights) do
    sum = sum + torch.linear(x, weight) * numbers:eq(i - 1):unsqueeze(-1):double()
  end
  return sum
end

local function weights_of()
  local weights = {}
  for i = 1, n_weights do weights[i] = random(3, 4) end
  return weights
end

local function grouped(x, weights) return native.grouped_linear(x, numbers, weights) end

for _, x in ipairs { random(5, 4), random(5, 2, 4) } do
  test(("grouped products of %d dimensions: values and two gradients"):format(x:dim()), function()
    local weights, direction = weights_of(), random(5, 2, 3)
    local function results_of(product)
      local params = { x = x, weights = weights }
      local function loss(p) return (product(p.x, p.weights):sin() * direction):sum() end
      local value, first = redco.value_and_grad(loss)(params)
      local _, second = redco.value_and_grad(function(p)
        local sum = 0
        for _, leaf in ipairs(redco.tree.leaves(select(2, redco.value_and_grad(loss)(p)))) do
          sum = sum + leaf:pow(2):sum()
        end
        return sum
      end)(params)
      return value, first, second
    end
    local value, first, second = results_of(grouped)
    local expected_value, expected_first, expected_second = results_of(by_all)
    expect_close(value, expected_value, 1e-12, 1e-12)
    for i, pair in ipairs { { first, expected_first }, { second, expected_second } } do
      local actual, expected = pair[1], pair[2]
      expect_close(actual.x, expected.x, 1e-10, 1e-10)
      for k = 1, n_weights do
        expect_close(actual.weights[k], expected.weights[k], 1e-10, 1e-10)
      end
      assert(expected.weights[1]:abs():max():item() > 0.01, i)
    end
    testing.expect_equal(first.weights[unused + 1]:abs():max():item(), 0)
  end)
end

test("grouped products of no rows, of examples under vmap, and of what does not fit", function()
  local weights = weights_of()
  local none = native.grouped_linear(random(0, 4), numbers:narrow(0, 0, 0), weights)
  testing.expect_equal(table.concat(none.shape, " "), "0 2 3")
  local rows = random(2, 5, 4)
  expect_close(redco.vmap(function(x) return grouped(x, weights) end)(rows)[1],
    grouped(rows[1], weights), 1e-12, 1e-12)
  for _, case in ipairs {
    { random(5, 3), numbers, weights, "weights [out, in] of one shape" },
    { random(4, 4), numbers, weights, "expected x [n, in] or [n, k, in]" },
    { random(5, 4):float(), numbers, weights, "one floating-point dtype" },
    { random(5, 4), numbers:int(), weights, "of int64" },
    { random(5, 4), numbers + 2, weights, "there are 4 weights" },
    { random(5, 4), numbers, {}, "there are no weights" },
  } do
    testing.expect_error(function() native.grouped_linear(case[1], case[2], case[3]) end, case[4])
  end
end)

-- Rows that `block_types` divide, and weights of a type with their numbers.
local function quantized_of(type)
  local packed, dense = {}, {}
  for i = 1, n_weights do
    packed[i] = native.quantize(random(3, 128), type)
    dense[i] = native.dequantize(packed[i], type, "float64")
  end
  return packed, dense
end

for _, type in ipairs { "q8_0", "q4_1", "nf4", "int4" } do
  test(type .. ": grouped products are those of the dequantized weights", function()
    local packed, dense = quantized_of(type)
    for _, x in ipairs { random(5, 128), random(5, 2, 128) } do
      local expected = by_all(x, dense)
      expect_close(native.grouped_linear(x, numbers, packed, type), expected, 1e-12, 1e-12)
      expect_close(native.grouped_linear(x:float(), numbers, packed, type):double(), expected, 1e-5,
        1e-4)
      local direction = random(5, 2, 3)
      local function gradients(product)
        local leaf = x:clone():requires_grad_()
        local y = (product(leaf):sin() * direction):sum()
        local first = torch.autograd.grad({ y }, { leaf }, { create_graph = true })[1]
        return first, torch.autograd.grad({ first:pow(2):sum() }, { leaf })[1]
      end
      local first, second = gradients(function(leaf)
        return native.grouped_linear(leaf, numbers, packed, type)
      end)
      local expected_first, expected_second = gradients(function(leaf)
        return by_all(leaf, dense)
      end)
      expect_close(first, expected_first, 1e-10, 1e-10)
      expect_close(second, expected_second, 1e-10, 1e-10)
      local examples = torch.stack { x, x * 2 }
      expect_close(redco.vmap(function(rows)
        return native.grouped_linear(rows, numbers, packed, type)
      end)(examples)[1], native.grouped_linear(x * 2, numbers, packed, type), 1e-12, 1e-12)
    end
    local none = native.grouped_linear(random(0, 128), numbers:narrow(0, 0, 0), packed, type)
    testing.expect_equal(table.concat(none.shape, " "), "0 2 3")
    packed[2] = packed[2]:narrow(0, 0, 2)
    testing.expect_error(function()
      native.grouped_linear(random(5, 128), numbers, packed, type)
    end, "expected weights [out, n, ", "of uint8 of one shape", "[2, ")
  end)
end

test("quantized grouped products name what does not fit", function()
  local packed = quantized_of "q8_0"
  for _, case in ipairs {
    { random(5, 96), packed, "q8_0", "blocks of 32 elements for floats x [5, 96]" },
    { random(4, 128), packed, "q8_0", "expected x [n, in] or [n, k, in]" },
    { random(5, 128):long(), packed, "q8_0", "floats x" },
    { random(5, 128), packed, "q4_0", "expected q4_0 in blocks [..., n, 18]" },
    { random(5, 128), packed, "q9", "expected one of q8_0" },
    { random(5, 128), {}, "q8_0", "there are no weights" },
  } do
    testing.expect_error(function() native.grouped_linear(case[1], numbers, case[2], case[3]) end,
      case[4])
  end
end)

local config = { model_type = "mixtral", vocab_size = 16, hidden_size = 8, intermediate_size = 12,
  num_hidden_layers = 2, num_attention_heads = 2, num_key_value_heads = 1, num_local_experts = 4,
  initializer_range = 0.5 }
local ids = torch.tensor { { 1, 2, 3, 4 }, { 5, 6, 7, 8 } }
local batch = { input_ids = ids, labels = ids }

test("adapters on some of the experts", function()
  local model = redco.models.from_config(config, { generator = torch.Generator(2) })
  local params = lora.add(model.params,
    { r = 2, target_modules = { "w1", "w2" }, generator = torch.Generator(3) })
  for name, leaf in pairs(params) do
    if name:find "lora_B" then leaf:normal_ { generator = generator } end
    -- One has none, one has another scaling.
    if name:find "experts%.1%..*lora" then params[name] = nil end
    if name:find "experts%.2%.w1%.lora_scaling" then params[name] = 3 end
  end
  expect_close(model(params, batch), model(lora.merge(params), batch), 1e-5, 1e-5)
  local difference = (model(params, batch) - model(model.params, batch)):abs():max():item()
  assert(difference > 0.01, "the adapters change nothing")
end)

test("experts some of which are quantized, with adapters", function()
  local given = redco.tree.map(function(value) return value end, config)
  given.hidden_size, given.intermediate_size = 64, 96
  local model = redco.models.from_config(given, { generator = torch.Generator(2) })
  for _, modules in ipairs { ".*%.experts%.[02]%.w[12]", ".*%.experts%..*" } do
    local packed = redco.quant.quantize(model.params, { type = "q8_0", target_modules = modules })
    local floats = redco.quant.dequantize(packed)
    local function adapted(params, use_dora)
      local result = lora.add(params, { r = 2, target_modules = { "w1", "w2" },
        lora_dropout = 0.5, use_dora = use_dora, generator = torch.Generator(3) })
      for name, leaf in pairs(result) do
        if name:find "lora_B" then leaf:fill_(0.1) end
      end
      return result
    end
    expect_close(model(packed, batch), model(floats, batch), 1e-5, 1e-5)
    for _, use_dora in ipairs { false, true } do
      local function trained(params)
        return model(adapted(params, use_dora), batch, { train = true, rng = torch.Generator(4) })
      end
      expect_close(trained(packed), trained(floats), 1e-5, 1e-5)
      expect_close(model(adapted(packed, use_dora), batch), model(adapted(floats, use_dora), batch),
        1e-5, 1e-5)
    end
  end
end)

test("a training step has the loads of the experts and the loss of the router", function()
  local given = {}
  for key, value in pairs(config) do given[key] = value end
  given.output_router_logits = true
  for _, n_micro in ipairs { 1, 2 } do
    local workdir = testing.folder()
    local model = redco.models.from_config(given, { generator = torch.Generator(2) })
    local _, _, expected = model.loss(model.params, batch)
    local trainer = redco.Trainer {
      deployer = redco.Deployer { seed = 1, verbose = false, workdir = workdir },
      params = model.params, loss_fn = model.loss_fn,
      optimizer = redco.optim.sgd { learning_rate = 0.1 },
      collate_fn = function(rows)
        local tokens = torch.stack(rows)
        return { input_ids = tokens, labels = tokens }
      end,
    }
    trainer:fit { train_examples = { ids[0], ids[1] }, n_epochs = 1, global_batch_size = 2,
      per_device_batch_size = 2 / n_micro }
    local metrics = regression.metrics_of(workdir)[1]
    assert(metrics.expert_load_max >= 1 and metrics.expert_load_min <= 1)
    assert(metrics.router_loss > 1)
    if n_micro == 1 then
      for name, value in pairs(expected) do
        expect_close(torch.tensor(metrics[name]), torch.tensor(value:item()), 1e-5, 1e-6)
      end
    end
  end
  torch.no_grad(function()
    local model = redco.models.from_config(given, { generator = torch.Generator(2) })
    testing.expect_equal(select(3, model.loss(model.params, batch)), nil)
  end)
end)

testing.finish()
