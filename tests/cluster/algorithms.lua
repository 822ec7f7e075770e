-- Private gradients and meta-gradients on every layout: the arrays of the reference cases.
local cases = require "algorithm_cases"
local redco = require "redco"
local testing = require "testing"

local nn, privacy, torch, tree = redco.nn, redco.privacy, redco.torch, redco.tree

--- Trains for one step with the given step, on the batch of a case.
local function train(deployer, params, batch, step, optimizer, loss_fn)
  local n = tree.leaves(batch)[1]:size(0)
  local indices = {}
  for i = 1, n do indices[i] = i - 1 end
  local trainer = redco.Trainer {
    deployer = deployer, params = params, optimizer = optimizer, train_step_fn = step,
    loss_fn = function(_, _, p, rows) return loss_fn(p, rows) end,
    collate_fn = function(rows)
      local chosen = torch.tensor(rows)
      return tree.map(function(leaf) return leaf:index_select(0, chosen) end, batch)
    end,
  }
  trainer:train {
    examples = indices, per_device_batch_size = math.ceil(n / deployer.mesh.dp),
  }
  return trainer
end

local function test_privacy(deployer, layout, arrays, info, tag)
  local case, loss = info.models[tag], cases.private_losses[tag]
  local params, batch = arrays(tag .. ".params."), arrays(tag .. ".")
  batch = { inputs = batch.inputs, labels = batch.labels }
  local expected = arrays(tag .. ".grad.sigma0.0.")
  -- The layout needs a loss of a whole batch.
  local function mean_loss(p, rows)
    return redco.vmap(loss, { in_dims = { false, 0 } })(p, rows):mean()
  end
  testing.test(("private gradients of the %s model %s"):format(tag, layout), function()
    local options = { max_grad_norm = case.max_grad_norm, noise_multiplier = 0,
      expected_batch_size = case.expected_batch_size, micro_batch_size = 5 }
    local trainer = train(deployer, params, batch, function(_, state, rows, defaults)
      local gradients = privacy.gradients(loss, state.params, rows, options)
      cases.expect_trees(gradients, expected, "gradient")
      -- With noise, of a part of the batch, and without examples: as on one process.
      for _, n in ipairs { 7, 1, 0 } do
        local function noisy(p, from)
          options.noise_multiplier, options.rng = 1.1, torch.Generator(n)
          return (privacy.gradients(loss, p,
            tree.map(function(leaf) return leaf:narrow(0, 0, n) end, from), options))
        end
        local plain = tree.map(function(leaf) return leaf:full() end, rows)
        cases.expect_trees(noisy(state.params, rows), noisy(params, plain), n .. " examples")
      end
      return { norm = defaults.apply_gradients(gradients) }
    end, redco.optim.sgd { learning_rate = case.learning_rate }, mean_loss)
    cases.expect_trees(trainer.params, tree.map(function(param, gradient)
      return param - case.learning_rate * gradient
    end, params, expected), "parameter")
  end)
end

local losses = {
  sine = function(params, x, y)
    return (nn.mlp(params, x, { activation = torch.relu }) - y):square():mean()
  end,
  digits = function(params, x, y)
    return nn.cross_entropy(nn.mlp(params, x, { activation = torch.tanh }), y)
  end,
}

local function test_meta_gradients(deployer, layout, arrays, case)
  local loss = losses[case.task]
  local function task_loss(params, task)
    for _ = 1, case.inner_steps do
      local gradients = redco.grad(loss)(params, task.train_x, task.train_y)
      params = tree.map(function(param, gradient)
        if not case.second_order then gradient = gradient:detach() end
        return param - case.inner_learning_rate * gradient
      end, params, gradients)
    end
    return loss(params, task.val_x, task.val_y)
  end
  local each = redco.vmap(task_loss, { in_dims = { false, 0 } })
  local order = case.second_order and "second" or "first"
  local name = ("%s, %d steps, %s order %s"):format(case.task, case.inner_steps, order, layout)
  testing.test("meta-gradients: " .. name, function()
    local batch = arrays(case.task .. ".batch0.")
    local params, value = arrays(case.task .. ".params."), nil
    train(deployer, params, batch, function(_, _, rows, defaults)
      local gradients
      value, gradients = defaults.value_and_grad(function(p) return each(p, rows):mean() end)
      cases.expect_trees(gradients,
        arrays(("%s.meta_grad.%s.steps%d."):format(case.task, order, case.inner_steps)), "gradient")
      return { norm = defaults.apply_gradients(gradients) }
    end, redco.optim.sgd { learning_rate = 0.1 }, function(p, rows) return each(p, rows):mean() end)
    cases.expect_near(value, case.meta_losses[1], "the loss")
  end)
end

local n_processes = redco.Deployer({ seed = 1, verbose = false }).n_processes
-- n_model_shards and zero, by the number of processes.
local layouts = {
  { { 1, 0 } }, { { 1, 0 }, { 2, 0 }, { 1, 3 } }, [4] = { { 2, 0 }, { 2, 3 } },
}
for _, facts in ipairs(layouts[n_processes]) do
  local n_model_shards, zero = unpack(facts)
  local deployer = redco.Deployer {
    seed = 1, n_model_shards = n_model_shards, zero = zero, zero_min_size = 1, verbose = false,
  }
  local layout = ("on %dx%d, zero %d"):format(deployer.mesh.dp, deployer.mesh.mp, zero)
  for i, folder in ipairs(cases.folders "dp_sgd") do
    local info, arrays = cases.read(folder)
    for _, tag in ipairs { "conv", "text" } do
      test_privacy(deployer, ("%s, case %d"):format(layout, i), arrays, info, tag)
    end
  end
  for i, folder in ipairs(cases.folders "maml") do
    local info, arrays = cases.read(folder)
    for _, case in ipairs(info.tables) do
      test_meta_gradients(deployer, ("%s, case %d"):format(layout, i), arrays, case)
    end
  end
end

testing.finish()
