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
