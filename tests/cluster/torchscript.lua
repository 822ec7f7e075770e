-- TorchScript modules train on every layout as they do on plain tensors in one process, and nothing
-- of what they run is gathered. tests/tools/make_torchscript_models.py wrote the modules.
local redco = require "redco"
local testing = require "testing"
local traffic = require "traffic"

local nn, torch, tree = redco.nn, redco.torch, redco.tree
local test, expect_close, expect_equal = testing.test, testing.expect_close, testing.expect_equal

local here = assert(os.getenv "REDCO_SOURCE") .. "/tests/cluster/script_"
local n_steps, learning_rate, momentum = 8, 0.1, 0.9

local generator = torch.Generator(4)

local function image()
  return {
    x = torch.randn({ 3, 8, 8 }, { generator = generator, dtype = "float64" }),
    y = torch.randint(5, {}, { generator = generator }),
  }
end

local function sentence()
  local tokens = torch.randint(29, { 7 }, { generator = generator })
  return { x = tokens:narrow(0, 0, 6), y = tokens:narrow(0, 1, 6) }
end

-- Batch normalization subtracts this bias again: its gradient is a rounding error.
local no_gradient = { ["stem.0.bias"] = true }

local runs = {
  { "conv", image, "float64" },
  { "lstm", sentence, "float64" },
  { "lstm", sentence, "float32" },  -- another kernel
  { "encoder", sentence, "float64" },
  { "decoder", sentence, "float64" },
}

local function is_buffer(name)
  return name:find("running_", 1, true) ~= nil or name:find("num_batches", 1, true) ~= nil
end

local function collate(examples)
  local x, y = {}, {}
  for i, example in ipairs(examples) do x[i], y[i] = example.x, example.y end
  return { x = torch.stack(x), y = torch.stack(y) }
end

-- The decoder has one tensor under two names.
local second_name = "unembedding.weight"
local function tie(params)
  if params[second_name] then params[second_name] = params["embedding.weight"] end
  return params
end

local function copy_of(params, dtype)
  return tie(tree.map(function(param)
    return param:is_floating_point() and param:to(dtype):clone() or param:clone()
  end, params))
end

--- The loss of each step, the predictions after the last, and the parameters then.
local function train_plain(loss_of, predict, params, batch)
  local trained, losses, velocity = {}, {}, {}
  for name, param in pairs(params) do
    if not is_buffer(name) and name ~= second_name then
      trained[name], velocity[name] = param, torch.zeros_like(param)
    end
  end
  local function loss_of_trained(now)
    for name, param in pairs(now) do params[name] = param end
    return loss_of(tie(params), batch)
  end
  for step = 1, n_steps do
    local loss, gradients = redco.value_and_grad(loss_of_trained)(trained)
    losses[step] = loss:item()
    for name, gradient in pairs(gradients) do
      velocity[name] = momentum * velocity[name] + gradient
      trained[name] = (trained[name] - learning_rate * velocity[name]):detach()
      params[name] = trained[name]
    end
  end
  tie(params)
  return losses, predict(params, batch), params
end

--- The same, and the operators that were gathered.
local function train_sharded(loss_of, predict, params, examples, dtype, options)
  local deployer = redco.Deployer {
    seed = 1, verbose = false, zero_min_size = 64, n_model_shards = options.n_model_shards,
    zero = options.zero,
  }
  local loss
  local before = traffic.gathered_without_rule()
  local trainer = redco.Trainer {
    deployer = deployer, params = params, collate_fn = collate, compute_dtype = dtype,
    loss_fn = function(_, _, now, batch)
      loss = loss_of(now, batch)
      return loss
    end,
    optimizer = redco.optim.freeze(
      redco.optim.sgd { learning_rate = learning_rate, momentum = momentum }, is_buffer),
  }
  local losses, per_device = {}, math.ceil(#examples / deployer.mesh.dp)
  for step = 1, n_steps do
    trainer:train { examples = examples, per_device_batch_size = per_device }
    losses[step] = loss:detach():full():item()
  end
  local predictor = trainer:get_default_predictor {
    pred_fn = function(_, now, batch) return predict(now, batch) end,
  }
  local predictions = predictor:predict {
    examples = examples, per_device_batch_size = per_device, params = trainer.state.params,
  }
  local gathered = {}
  for name, calls in pairs(traffic.gathered_without_rule()) do
    if calls > (before[name] or 0) then gathered[#gathered + 1] = name end
  end
  table.sort(gathered)
  local is_split = {}
  for _, param in ipairs(tree.leaves(trainer.params)) do
    for group, placement in pairs(param:placement()) do
      if placement ~= "replicate" then is_split[group] = true end
    end
  end
  expect_equal(is_split.mp or false, deployer.mesh.mp > 1)
  expect_equal(is_split.dp or false, deployer.mesh.dp > 1 and options.zero == 3)
  return losses, torch.stack(predictions), trainer.params, table.concat(gathered, " ")
end

local n_processes = redco.Deployer({ seed = 1, verbose = false }).mesh.dp

local function all_layouts()
  local list = {}
  for n_model_shards = 1, n_processes do
    if n_processes % n_model_shards == 0 then
      list[#list + 1] = { n_model_shards = n_model_shards, zero = 0 }
      if n_model_shards < n_processes then
        list[#list + 1] = { n_model_shards = n_model_shards, zero = 3 }
      end
    end
  end
  return list
end

local layouts = all_layouts()

for _, run in ipairs(runs) do
  local name, make_example, dtype = unpack(run)
  local module = torch.jit.load(here .. name .. ".pt")
  local examples = {}
  for i = 1, 7 do examples[i] = make_example() end  -- not a multiple of the processes

  local function loss_of(params, batch)
    return nn.cross_entropy(module:train()(params, batch.x), batch.y)
  end
  local function predict(params, batch) return module:eval()(params, batch.x) end

  local initial = module.params
  local losses, predictions, params
  test(name .. " " .. dtype .. " learns", function()
    losses, predictions, params = train_plain(loss_of, predict, copy_of(initial, dtype),
      collate(examples))
    assert(losses[n_steps] < losses[1], ("%g, %g"):format(losses[1], losses[n_steps]))
    for path, before in pairs(copy_of(initial, dtype)) do
      assert(no_gradient[path] or params[path]:ne(before):any():item(), path .. " has not changed")
    end
  end)

  for _, layout in ipairs(layouts) do
    local n_dp = n_processes / layout.n_model_shards
    local what = ("%s %s, %dx%d, zero = %d"):format(name, dtype, n_dp, layout.n_model_shards,
      layout.zero)
    test(what, function()
      local found, predicted, trained, gathered = train_sharded(loss_of, predict,
        copy_of(initial, dtype), examples, dtype, layout)
      local tolerance = dtype == "float64" and 1e-9 or 1e-4
      expect_close(torch.tensor(found, { dtype = "float64" }),
        torch.tensor(losses, { dtype = "float64" }), tolerance, 0)
      expect_close(predicted, predictions, tolerance, tolerance)
      for _, path in ipairs(tree.paths(params)) do  -- in the same order on all processes
        expect_close(trained[path]:full(), params[path], tolerance, tolerance)
      end
      expect_equal(gathered, "")
    end)
  end
end

testing.finish()
