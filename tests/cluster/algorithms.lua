-- Private gradients, meta-gradients, federated averages, and updates of PPO and DDPG on every
-- layout: the arrays of the reference cases.
local cases = require "algorithm_cases"
local redco = require "redco"
local testing = require "testing"

local nn, privacy, torch, tree = redco.nn, redco.privacy, redco.torch, redco.tree
local federated = redco.federated

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

local function indices(first, n)
  local list = {}
  for i = 1, n do list[i] = first + i - 1 end
  return list
end

local function test_ppo(deployer, layout, arrays, run, kind)
  local data, h = arrays(kind .. "."), run.hyperparameters
  local ppo = cases.ppo(kind, h)
  local batch = { returns = data.returns }
  for _, name in ipairs { "observations", "actions", "log_probs", "values", "advantages" } do
    batch[name] = data[name]
  end
  batch = tree.map(function(t) return t:flatten(0, 1) end, batch)
  testing.test(("PPO, %s %s"):format(kind, layout), function()
    local trainer = redco.Trainer {
      deployer = deployer, params = data.params,
      optimizer = redco.optim.chain { redco.optim.clip_by_global_norm(h.max_grad_norm),
        redco.optim.adam { learning_rate = h.optimizer.lr, eps = h.optimizer.eps } },
      loss_fn = function(_, _, params, rows)
        local found = ppo.losses(params, rows)
        local metrics = tree.map(function(t) return t:detach() end, found)
        metrics.loss = nil
        return found.loss, rows.returns:size(0), metrics
      end,
      collate_fn = function(numbers)
        local chosen = torch.tensor(numbers)
        return tree.map(function(t) return t:index_select(0, chosen) end, batch)
      end,
    }
    local n_updates = 0
    for _, order in ipairs(run.permutations) do
      for first = 1, #order, h.minibatch_size do
        local found = trainer:train_step {
          examples = { unpack(order, first, first + h.minibatch_size - 1) } }
        n_updates = n_updates + 1
        local expected = run.minibatches[n_updates]
        found.old_approx_kl = expected.old_approx_kl
        cases.expect_figures(found, expected, "update " .. n_updates)
      end
    end
    cases.expect_trees(trainer.params, data.params_after, "parameter")
  end)
end

local function test_ddpg(deployer, layout, arrays, run, kind)
  local h = run.hyperparameters
  testing.test(("DDPG, %s %s"):format(kind, layout), function()
    local found
    local target = tree.map(function(t) return t:clone() end, arrays "target.")
    local function move_target(params)
      tree.map(function(t, param) t:lerp_(param:full():detach(), h.tau) end, target, params)
    end
    local function joint_loss(params, rows)
      local loss
      loss, found = cases.ddpg.critic_loss(params, target, rows, h.gamma)
      found.actor_loss = cases.ddpg.actor_loss(params, rows)
      return (h.critic_loss_weight or 1) * loss + found.actor_loss
    end
    local function adam() return redco.optim.adam { learning_rate = h.optimizer.lr } end
    local trainer = redco.Trainer {
      deployer = deployer, params = arrays "params.",
      optimizer = kind == "redco" and adam()
        or redco.optim.multi { { "actor.*", adam() }, { "critic.*", adam() } },
      loss_fn = function(_, _, params, rows) return joint_loss(params, rows) end,
      train_step_fn = function(_, state, rows, defaults)
        if kind == "redco" then
          local _, gradients = defaults.value_and_grad(function(p) return joint_loss(p, rows) end)
          defaults.apply_gradients(gradients)
        else
          local _, gradients = defaults.value_and_grad(function(p)
            local loss
            loss, found = cases.ddpg.critic_loss(p, target, rows, h.gamma)
            return loss
          end)
          defaults.apply_gradients { critic = gradients.critic }
          if state.step % h.policy_frequency ~= 0 then return found end
          found.actor_loss, gradients = defaults.value_and_grad(function(p)
            return cases.ddpg.actor_loss(p, rows)
          end)
          defaults.apply_gradients { actor = gradients.actor }
        end
        move_target(state.params)
        return tree.map(function(t) return t:detach() end, found)
      end,
      -- An example is a row of one of the batches.
      collate_fn = function(numbers)
        local chosen = torch.tensor(numbers):remainder(32)
        local batch = arrays(("batch%d."):format(math.floor(numbers[1] / 32)))
        return tree.map(function(t) return t:index_select(0, chosen) end, batch)
      end,
    }
    for i, expected in ipairs(run.updates) do
      cases.expect_figures(trainer:train_step { examples = indices(32 * (i - 1), 32) }, expected,
        "update " .. i)
    end
    cases.expect_trees(trainer.params, arrays(kind .. ".params_after."), "parameter")
  end)
end

-- The batches of a client: its rows in their order.
local function in_order(n, size, epochs)
  local batches = {}
  for _ = 1, epochs do
    for _, rows in ipairs(torch.arange(n):split(size)) do batches[#batches + 1] = rows end
  end
  return batches
end

local function test_federated(deployer, layout, arrays, run)
  local name = ("federated averaging by %s, %s, %s"):format(run.weights, run.optimizer, layout)
  local optimizer = redco.optim[run.optimizer] { learning_rate = run.learning_rate }
  testing.test(name, function()
    local params = arrays "params."
    for i, clients in ipairs(run.rounds) do
      local function client_of(k) return arrays(("client%d."):format(k)) end
      params = federated.round(deployer, clients, function(k)
        local client = client_of(k)
        return federated.train_client(params, function(p, rows)
          return losses.digits(p, client.x[rows], client.y[rows])
        end, in_order(client.x:size(0), run.batch_size, run.local_epochs), optimizer)
      end, function(k) return run.weights == "uniform" and 1 or client_of(k).x:size(0) end)
      local held_out, expected = arrays "test.", run.log[i]
      cases.expect_near(losses.digits(params, held_out.x, held_out.y), expected.test_loss,
        "the loss of round " .. i)
      for path, norm in pairs(expected.param_norms) do
        local index, key = path:match "(%d+)%.(%a+)"
        cases.expect_near(params[index + 1][key]:norm(), norm, "the norm of " .. path)
      end
    end
  end)
end

-- Of one client the result is that of plain training, bit for bit.
local function test_one_client(deployer, layout, arrays)
  testing.test("federated averaging of one client " .. layout, function()
    local params, client = arrays "params.", arrays "client0."
    local optimizer = redco.optim.adam { learning_rate = 0.01 }
    local batches = in_order(client.x:size(0), 7, 2)
    local function loss_of(p, rows)
      return (losses.digits(p, client.x[rows], client.y[rows]))
    end
    local function train_one()
      return federated.train_client(params, loss_of, batches, optimizer)
    end
    local result = federated.round(deployer, { 1 }, train_one, function() return 30 end)
    local expected = deployer:alone(function(own)
      local trainer = redco.Trainer { deployer = own, params = params, optimizer = optimizer,
        collate_fn = function(rows) return { rows = torch.tensor(rows) } end,
        loss_fn = function(_, _, p, batch) return loss_of(p, batch.rows) end }
      for _, rows in ipairs(batches) do trainer:train_step { examples = rows:tolist() } end
      return tree.map(function(param) return param:detach() end, trainer.params)
    end)[1]
    for i, leaf in ipairs(tree.leaves(expected)) do
      assert(torch.equal(tree.leaves(result)[i], leaf), tree.paths(expected)[i])
    end
    testing.expect_error(function()
      federated.round(deployer, { 1 }, function()
        return federated.train_client(params, loss_of, {}, optimizer)
      end, function() return 1 end)
    end, "a client without examples cannot train")
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
  for name, run_test in pairs { ppo = test_ppo, ddpg = test_ddpg } do
    for i, folder in ipairs(cases.folders(name)) do
      local info, arrays = cases.read(folder)
      for kind, run in pairs(info.runs) do
        -- The Trainer changes its parameters in place.
        local function copies(prefix)
          return tree.map(function(t) return t:clone() end, arrays(prefix))
        end
        run_test(deployer, ("%s, case %d"):format(layout, i), copies, run, kind)
      end
    end
  end
  for i, folder in ipairs(cases.folders "maml") do
    local info, arrays = cases.read(folder)
    for _, case in ipairs(info.tables) do
      test_meta_gradients(deployer, ("%s, case %d"):format(layout, i), arrays, case)
    end
  end
  for i, folder in ipairs(cases.folders "fedavg") do
    local info, arrays = cases.read(folder)
    for _, run in ipairs(info.runs) do
      test_federated(deployer, ("%s, case %d"):format(layout, i), arrays, run)
    end
    test_one_client(deployer, ("%s, case %d"):format(layout, i), arrays)
  end
end

testing.finish()
