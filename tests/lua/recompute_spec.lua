-- Blocks that backward computes again: the numbers of all families are those of the plain model.
local cases = require "model_cases"
local native = require "redco.native"
local redco = require "redco"
local testing = require "testing"

local torch, nn = redco.torch, redco.nn
local test, expect_equal, expect_error = testing.test, testing.expect_equal, testing.expect_error

-- Calls f, and returns the number of blocks that are computed again.
local function n_recomputed(f)
  local n, checkpoint = 0, native.checkpoint_block
  native.checkpoint_block = function(...)
    n = n + 1
    return checkpoint(...)
  end
  local ok, message = pcall(f)
  native.checkpoint_block = checkpoint
  if not ok then error(message, 0) end
  return n
end

native.keep_results_of(0)  -- these models are small

local function gradients(model, params, inputs)
  local tracked = {}
  for name, tensor in pairs(params) do
    tracked[name] = tensor:clone():requires_grad_(not redco.nn.is_running_statistic(name))
  end
  local loss = cases.loss(model, tracked, inputs, { train = true, rng = torch.Generator(3) })
  loss:backward()
  local grads = { loss = loss:detach() }
  for name, tensor in pairs(tracked) do grads[name] = tensor.grad end
  return grads
end

for _, folder in ipairs(cases.folders) do
  for _, name in ipairs(cases.found(folder, cases.names)) do
    local case = cases.open(folder, name)
    local plain = redco.models.from_pretrained(case.dir)
    test(("%s/%s"):format(folder, name), function()
      local inputs = cases.training_inputs(case, "batch0", not cases.predicts_next(plain))
      local expected
      expect_equal(n_recomputed(function()
        expected = gradients(plain, plain.params, inputs)
      end), 0)
      for _, recompute in ipairs { "blocks", "selective" } do
        local model = redco.models.from_pretrained(case.dir, { recompute = recompute })
        local actual
        assert(n_recomputed(function() actual = gradients(model, plain.params, inputs) end) > 0)
        for key, grad in pairs(expected) do
          if not torch.equal(actual[key], grad) then
            error(("%s: the gradient of %s differs by %g"):format(recompute, key,
              (actual[key] - grad):abs():max():item()))
          end
        end
      end
    end)
  end
end

local function trained(recompute)
  local deployer = redco.Deployer { seed = 2, verbose = false }
  local rng = deployer:gen_rng()
  local trainer = redco.Trainer {
    deployer = deployer, recompute = recompute,
    params = { nn.Linear(8, 8, { generator = rng }), nn.Linear(8, 8, { generator = rng }) },
    optimizer = redco.optim.adamw { learning_rate = 0.1 },
    collate_fn = function(examples)
      return { x = torch.tensor(examples, { dtype = "float32" }) }
    end,
    loss_fn = function(generator, _, params, batch, is_training)
      local x = batch.x
      for _, layer in ipairs(params) do
        x = nn.block(function(y)
          y = nn.block(nn.linear, layer, y)  -- is a part of the outer block
          return nn.dropout(y:tanh(), 0.5, { train = is_training, rng = generator })
        end, x)
      end
      return x:square():mean()
    end,
  }
  local examples = {}
  for i = 1, 4 do examples[i] = { i, 1, 2, 3, 4, 5, 6, i } end
  trainer:fit { train_examples = examples, per_device_batch_size = 2, n_epochs = 2,
    eval_examples = examples }
  return trainer.params
end

test("nn.block and the Trainer's option", function()
  local expected, actual
  expect_equal(n_recomputed(function() expected = trained() end), 0)
  -- Two layers in four steps, and none in evaluations.
  for _, recompute in ipairs { "blocks", "selective" } do
    expect_equal(n_recomputed(function() actual = trained(recompute) end), 8)
    for i = 1, 2 do assert(torch.equal(actual[i].weight, expected[i].weight)) end
  end
end)

-- A residual stream: y, computed from x, is added to it.
local function residual(recompute, add)
  local params = { bias = torch.tensor { 0.3, -0.7 }, w = torch.tensor { 1.5, 0.2 } }
  local trainer = redco.Trainer {
    deployer = redco.Deployer { seed = 2, verbose = false }, recompute = recompute, params = params,
    optimizer = redco.optim.sgd { learning_rate = 0.1 },
    collate_fn = redco.data.default_collate,
    loss_fn = function(_, _, p, batch)
      local x = batch.x + p.w
      for _ = 1, 2 do
        x = add(x, nn.block(function(h) return (h + p.bias):tanh() end, x))
      end
      return x:square():mean()
    end,
  }
  trainer:fit { train_examples = { { x = torch.tensor { 0.1, 0.4 } } }, per_device_batch_size = 1,
    n_epochs = 1 }
  return trainer.params
end

test("a block's input that is written in place is an error, and no other gradient", function()
  local function out_of_place(x, y) return x + y end
  local function in_place(x, y) return x:add_(y) end
  local expected = residual("none", in_place)
  local actual = residual("blocks", out_of_place)
  for name in pairs(expected) do assert(torch.equal(actual[name], expected[name])) end
  expect_error(function() residual("blocks", in_place) end, "argument 1, float32[1, 2]",
    "has been modified in place")
end)

test("a block returns what its function returns", function()
  local a, b, c = nn.block(function(...) return select("#", ...), nil, ... end, 5)
  expect_equal(a, 1)
  assert(b == nil)
  expect_equal(c, 5)
end)

test("errors", function()
  expect_error(function() trained "layers" end,
    'redco.Trainer: recompute = "layers" is not "none", "selective" or "blocks"')
  expect_error(function()
    redco.models.from_config({ model_type = "gpt2" }, { recompute = "all" })
  end, 'recompute = "all" is not "none", "selective" or "blocks"')
end)

testing.finish()
