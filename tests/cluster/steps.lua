-- Steps of one's own, and derivatives of derivatives, on data- and on model-parallel processes:
-- what plain tensors give in the same process is what they must give.
local redco = require "redco"
local testing = require "testing"

local nn, torch, tree = redco.nn, redco.torch, redco.tree
local test, expect_close, expect_equal = testing.test, testing.expect_close, testing.expect_equal

local generator = torch.Generator(3)
local initial = tree.map(function(leaf) return leaf:double() end,
  nn.MLP({ 6, 10, 5 }, { generator = generator }))
local examples = {}
for i = 1, 11 do
  examples[i] = torch.randn({ 7 }, { generator = generator, dtype = "float64" })
end

local function collate(batch)
  local rows = torch.stack(batch)
  return { x = rows:narrow(1, 0, 6), y = rows:narrow(1, 6, 1) }
end

local function loss_of(params, batch)
  return (nn.mlp(params, batch.x, { activation = torch.tanh }) - batch.y):pow(2):mean()
end

--- The squared norm of the gradient of the loss: its gradient is a second derivative.
local function steepness(params, batch)
  local total = 0
  local gradients = redco.grad(loss_of, { create_graph = true })(params, batch)
  for _, gradient in ipairs(tree.leaves(gradients)) do total = total + gradient:pow(2):sum() end
  return total
end

local function expect_trees(actual, expected)
  local leaves = tree.leaves(actual)
  for i, leaf in ipairs(tree.leaves(expected)) do
    expect_close(leaves[i]:full(), leaf:full(), 1e-10, 1e-12)
  end
end

local function sgd(params, gradients, rate)
  return tree.map(function(param, gradient) return (param - rate * gradient):detach() end, params,
    gradients)
end

--- A Trainer with this step, trained for an epoch of one batch; returns it and the batch.
local function trained(deployer, step, optimizer)
  local trainer = redco.Trainer {
    deployer = deployer, params = initial, collate_fn = collate, compute_dtype = "float64",
    loss_fn = function(_, _, params, batch) return loss_of(params, batch) end,
    optimizer = optimizer or redco.optim.sgd { learning_rate = 0.1 },
    train_step_fn = step,
  }
  trainer:train { examples = examples, per_device_batch_size = 12 / deployer.mesh.dp }
  return trainer
end

-- The order of an epoch does not matter to a mean.
local whole_batch = collate(examples)

for _, n_model_shards in ipairs { 1, 2 } do
  local deployer = redco.Deployer { seed = 1, n_model_shards = n_model_shards, verbose = false }
  local layout = (" on %dx%d"):format(deployer.mesh.dp, deployer.mesh.mp)

  test("value_and_grad and apply_gradients" .. layout, function()
    local trainer = trained(deployer, function(_, _, batch, defaults)
      local loss, gradients = defaults.value_and_grad(function(params)
        return loss_of(params, batch)
      end)
      return { loss = loss, norm = defaults.apply_gradients(gradients) }
    end)
    expect_equal(trainer.step, 1)
    expect_trees(trainer.params, sgd(initial, redco.grad(loss_of)(initial, whole_batch), 0.1))
  end)

  test("gradients made by the script" .. layout, function()
    local trainer = trained(deployer, function(_, state, batch, defaults)
      local loss, gradients = redco.value_and_grad(loss_of)(state.params, batch)
      defaults.apply_gradients(tree.map(function(gradient) return gradient * 2 end, gradients))
      return { loss = loss }
    end)
    expect_trees(trainer.params, sgd(initial, redco.grad(loss_of)(initial, whole_batch), 0.2))
  end)

  test("clipping leaves the script's gradients as they are" .. layout, function()
    local optimizer = redco.optim.chain {
      redco.optim.clip_by_global_norm(1e-3), redco.optim.sgd { learning_rate = 0.1 },
    }
    trained(deployer, function(_, state, batch, defaults)
      local loss, gradients = redco.value_and_grad(loss_of)(state.params, batch)
      local before = tree.map(function(gradient) return gradient:full():clone() end, gradients)
      assert(defaults.apply_gradients(gradients):item() > 1e-3)
      expect_trees(gradients, before)
      return { loss = loss }
    end, optimizer)
  end)

  test("a step that goes along a second derivative" .. layout, function()
    local trainer = trained(deployer, function(_, _, batch, defaults)
      local loss, gradients = defaults.value_and_grad(function(params)
        return steepness(params, batch)
      end)
      defaults.apply_gradients(gradients)
      return { loss = loss }
    end)
    expect_trees(trainer.params, sgd(initial, redco.grad(steepness)(initial, whole_batch), 0.1))
  end)

  test("second derivatives of sharded tensors" .. layout, function()
    local placements = { { { mp = 0 }, { mp = 0 } }, { { mp = 1 }, {} } }
    local params = {}
    for i, layer in ipairs(initial) do
      params[i] = {
        weight = redco.shard(layer.weight, placements[i][1]),
        bias = redco.shard(layer.bias, placements[i][2]),
      }
    end
    local batch = tree.map(function(leaf) return redco.shard(leaf, { dp = 0 }) end, whole_batch)
    expect_trees(redco.grad(steepness)(params, batch), redco.grad(steepness)(initial, whole_batch))
  end)
end

-- Backward leaves the gradient of an embedding that is split by rows split by columns, where the
-- weight after it is split along its inputs; there dp splits it too.
for zero = 0, 3 do
  test("gradients that lie otherwise than their parameters, zero = " .. zero, function()
    local deployer = redco.Deployer {
      seed = 1, n_model_shards = 2, zero = zero, zero_min_size = 0, verbose = false,
    }
    local function random(sizes)
      return torch.randn(sizes, { generator = generator, dtype = "float64" })
    end
    local params = { embedding = random { 3, 4 }, weight = random { 5, 4 } }
    local function squares(now, batch)
      return torch.linear(torch.embedding(now.embedding, batch.ids), now.weight):pow(2):mean()
    end
    local ids = { torch.tensor { 0, 2 }, torch.tensor { 2, 1 } }
    local trainer = redco.Trainer {
      deployer = deployer, params = params, compute_dtype = "float64",
      collate_fn = function(batch) return { ids = torch.stack(batch) } end,
      loss_fn = function(_, _, now, batch) return squares(now, batch) end,
      optimizer = redco.optim.sgd { learning_rate = 0.1 },
      params_sharding_rules = { { "embedding", 0 }, { "weight", 1 } },
    }
    trainer:train { examples = ids, per_device_batch_size = 2 / deployer.mesh.dp }
    local gradients = redco.grad(squares)(params, { ids = torch.stack(ids) })
    expect_trees(trainer.params, sgd(params, gradients, 0.1))
  end)
end

testing.finish()
