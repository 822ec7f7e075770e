-- Hooks of fit and the custom state; steps in a script's own loop; several networks in one step.
local redco = require "redco"
local testing = require "testing"

local torch, optim = redco.torch, redco.optim
local test, expect_error = testing.test, testing.expect_error
local expect_close, expect_equal = testing.expect_close, testing.expect_equal

local examples = {}
for i = 1, 8 do examples[i] = torch.full({ 2 }, i / 4) end

local function collate_fn(rows) return { x = torch.stack(rows) } end
local function loss_fn(_, _, params, batch)
  return (batch.x:matmul(params.w) - 1):square():mean()
end

local function new_trainer(options)
  local all = { deployer = redco.Deployer { seed = 1, verbose = false }, collate_fn = collate_fn,
    loss_fn = loss_fn, params = { w = torch.tensor { 0.5, -0.5 } },
    optimizer = optim.sgd { learning_rate = 0.1, momentum = 0.9 } }
  for name, value in pairs(options or {}) do all[name] = value end
  return redco.Trainer(all)
end

local function fit(trainer, options)
  local all = { train_examples = examples, per_device_batch_size = 4, n_epochs = 2 }
  for name, value in pairs(options or {}) do all[name] = value end
  trainer:fit(all)
end

test("hooks are called in their order, with what they need", function()
  local calls, kept = {}, nil
  local trainer = new_trainer {
    deployer = redco.Deployer { seed = 1, verbose = false, workdir = testing.folder() .. "/order" },
  }
  local function note(name)
    return function(event)
      kept = event
      local metrics = {}
      for metric in pairs(event.metrics) do metrics[#metrics + 1] = metric end
      table.sort(metrics)
      assert(rawequal(event.metrics, event.metrics))
      expect_equal(event.trainer.step, event.step)
      calls[#calls + 1] = ("%s %d %d %s%s"):format(name, event.step, event.epoch_idx,
        table.concat(metrics, ","), event.ckpt_names and ":" .. event.ckpt_names[1] or "")
    end
  end
  fit(trainer, { eval_examples = examples, save_last_ckpt = true, on_step = note "step",
    on_eval = note "eval", on_epoch = note "epoch", on_save = note "save" })
  expect_equal(table.concat(calls, "\n"), table.concat({
    "step 1 0 grad_norm,loss,lr", "step 2 0 grad_norm,loss,lr", "eval 2 0 loss", "epoch 2 0 loss",
    "save 2 0 loss:last",
    "step 3 1 grad_norm,loss,lr", "step 4 1 grad_norm,loss,lr", "eval 4 1 loss", "epoch 4 1 loss",
    "save 4 1 loss:last" }, "\n"))
  expect_error(function() kept.stop "late" end, "event.stop is for use inside the hook")
end)

test("a hook ends the run, with its last checkpoint", function()
  local deployer = redco.Deployer { seed = 1, verbose = false,
    workdir = testing.folder() .. "/stops" }
  for _, case in ipairs { { "on_step", 3 }, { "on_eval", 2 }, { "on_epoch", 2 } } do
    local hook, step = unpack(case)
    local trainer = new_trainer { deployer = deployer }
    fit(trainer, { eval_examples = examples, save_last_ckpt = true, n_epochs = 5,
      [hook] = function(event) if event.step >= step then event.stop "enough" end end })
    expect_equal(trainer.step, step)
    local _, info = deployer:load_last_ckpt()
    expect_equal(info.step, step)
  end
end)

test("a hook changes the learning rate and reads the parameters of its step", function()
  local rate, seen = 1, {}
  local optimizer = optim.sgd { learning_rate = function() return rate end }
  local trainer = new_trainer { optimizer = optimizer }
  fit(trainer, { on_step = function(event)
    seen[#seen + 1] = event.trainer.params.w:detach():clone()
    rate = 0
  end })
  assert(not torch.equal(seen[1], torch.tensor { 0.5, -0.5 }))
  for i = 2, 4 do assert(torch.equal(seen[i], seen[1])) end
end)

test("custom_state goes through checkpoints, bit for bit", function()
  local function run(workdir, max_steps)
    local deployer = redco.Deployer { seed = 1, verbose = false, workdir = workdir }
    local ckpt, info = deployer:load_last_ckpt()
    local trainer = new_trainer {
      deployer = deployer, params = ckpt and ckpt.params, opt_state = ckpt and ckpt.opt_state,
      last_ckpt_info = info,
      custom_state = ckpt and ckpt.custom_state
        or { n = 0, name = "mean", average = { w = torch.zeros { 2 } } },
      loss_fn = function(rng, state, params, batch)
        return loss_fn(rng, state, params, batch) + state.custom_state.average.w:square():sum()
          * params.w:sum()
      end,
    }
    fit(trainer, { save_last_ckpt = true, n_epochs = 3, max_steps = max_steps,
      on_step = function(event)
        local own = event.trainer.state.custom_state
        own.n = own.n + 1
        own.average = { w = own.average.w * 0.9 + event.trainer.params.w:detach() * 0.1 }
      end })
    return trainer
  end
  local folder = testing.folder()
  local whole = run(folder .. "/whole")
  run(folder .. "/parts", 3)
  local resumed = run(folder .. "/parts")
  assert(torch.equal(resumed.params.w, whole.params.w))
  local own = resumed.state.custom_state
  expect_equal(own.n, 6)
  expect_equal(own.name, "mean")
  assert(torch.equal(own.average.w, whole.state.custom_state.average.w))
end)

test("on_save changes the custom_state that is saved; Deployer:save_ckpt takes one", function()
  local workdir = testing.folder() .. "/on_save"
  local deployer = redco.Deployer { seed = 1, verbose = false, workdir = workdir }
  local trainer = new_trainer { deployer = deployer, custom_state = {} }
  fit(trainer, { save_ckpt_every_k_steps = 2, on_save = function(event)
    trainer.state.custom_state.saved_at = event.step
  end })
  local ckpt = deployer:load_ckpt { ckpt_dir = workdir .. "/ckpts/step_2" }
  expect_equal(ckpt.custom_state.saved_at, 2)
  deployer:save_ckpt { ckpt_dir = workdir .. "/own", params = trainer.params,
    custom_state = { pool = { torch.ones { 3 } }, turn = 4 } }
  local own = deployer:load_ckpt({ ckpt_dir = workdir .. "/own" }).custom_state
  expect_equal(own.turn, 4)
  expect_close(own.pool[1], torch.ones { 3 })
  expect_equal(deployer:load_ckpt({ ckpt_dir = workdir .. "/own" }).opt_state, nil)
end)

test("on_nonfinite = restore takes the custom state and a plateau's numbers back", function()
  local custom = { n = 0 }
  local poisoned = {}
  for i = 1, 6 do poisoned[i] = torch.full({ 2 }, i / 4) end
  local is_bad = false
  local trainer = new_trainer {
    deployer = redco.Deployer { seed = 1, verbose = false, workdir = testing.folder() .. "/back" },
    custom_state = custom,
    optimizer = optim.sgd { learning_rate = optim.on_plateau { value = 0.01, patience = 0 } },
    loss_fn = function(rng, state, params, batch)
      local loss = loss_fn(rng, state, params, batch)
      if state.step == 2 and not is_bad then
        is_bad = true
        return loss * (0 / 0)
      end
      return loss
    end,
  }
  local seen = {}
  fit(trainer, { train_examples = poisoned, per_device_batch_size = 1, n_epochs = 1,
    eval_examples = examples, save_ckpt_every_k_steps = 1, on_nonfinite = "restore",
    save_in_background = false,
    on_step = function(event)
      custom.n = custom.n + 1
      seen[#seen + 1] = event.step .. ":" .. custom.n
    end })
  expect_equal(trainer.state.custom_state, custom)
  expect_equal(table.concat(seen, " "), "1:1 2:2 3:3 4:4 5:5")
end)

test("on_plateau needs evaluations, also inside other optimizers", function()
  local sgd = optim.sgd { learning_rate = optim.on_plateau { value = 0.1 } }
  for _, optimizer in ipairs { sgd, optim.freeze(sgd, function() return false end),
    optim.chain { optim.clip_by_value(1), sgd }, optim.multi { { "*", sgd } } } do
    local trainer = new_trainer { optimizer = optimizer }
    expect_error(function() fit(trainer) end,
      "a learning rate of on_plateau needs eval_examples")
  end
end)

test("on_plateau follows the evaluations of fit", function()
  local trainer = new_trainer {
    optimizer = optim.sgd { learning_rate = optim.on_plateau { value = 1e-9, factor = 0.5,
      patience = 0, threshold = 0.1, eps = 0 } },
  }
  fit(trainer, { eval_examples = examples, n_epochs = 3 })
  expect_equal(trainer.state.opt_state.plateau.value, 2.5e-10)
end)

test("train_step does the steps of fit", function()
  local fitted, stepped = new_trainer(), new_trainer()
  local order = {}
  fitted:fit { per_device_batch_size = 4, n_epochs = 1, train_examples = redco.data.dataset(8,
    function(i) return examples[i] end),
    on_step = function(event) order[#order + 1] = event.metrics.loss end }
  -- The order of the epoch is unknown here: a batch of all examples does not depend on it.
  local whole = new_trainer()
  whole:fit { train_examples = examples, per_device_batch_size = 8, n_epochs = 2 }
  local metrics = {}
  for i = 1, 2 do metrics[i] = stepped:train_step { examples = examples } end
  expect_close(stepped.params.w:detach(), whole.params.w:detach(), 1e-6)
  expect_equal(stepped.step, 2)
  assert(metrics[2].loss < metrics[1].loss and metrics[1].grad_norm > 0 and metrics[1].lr == 0.1)
  local micro = new_trainer()
  for _ = 1, 2 do micro:train_step { examples = examples, per_device_batch_size = 3 } end
  expect_close(micro.params.w:detach(), whole.params.w:detach(), 1e-6)
  expect_error(function() stepped:train_step { examples = {} } end, "the set of examples is empty")
end)

test("a train_step_fn applies gradients of several networks, as one step", function()
  local trainer = new_trainer {
    params = { a = { w = torch.ones { 2 } }, b = { w = torch.ones { 2 } } },
    optimizer = optim.multi { { "a.*", optim.adamw { learning_rate = 0.1 } },
      { "b.*", optim.sgd { learning_rate = 0.5, momentum = 0.9 } } },
    loss_fn = function() end,
    train_step_fn = function(_, state, batch, defaults)
      local first = defaults.value_and_grad(function(p) return (p.a.w * batch.x):sum() end)
      local _, grads = defaults.value_and_grad(function(p) return (p.a.w * batch.x):sum() end)
      defaults.apply_gradients { a = grads.a }
      _, grads = defaults.value_and_grad(function(p)
        return (p.b.w * state.params.a.w:detach()):sum()
      end)
      for _ = 1, 2 do defaults.apply_gradients { b = grads.b } end
      return { first = first }
    end,
  }
  local metrics = trainer:train_step { examples = examples }
  expect_equal(trainer.step, 1)
  assert(metrics.lr == 0.1 and metrics.lr_2 == 0.5)
  expect_close(trainer.params.a.w:detach(), torch.full({ 2 }, 0.899), 1e-5)
  -- Two steps of momentum with the gradient 0.899: 0.5 * 0.899 * (1 + 1.9).
  expect_close(trainer.params.b.w:detach(), torch.full({ 2 }, 1 - 0.5 * 0.899 * 2.9), 1e-5)
  expect_equal(trainer.state.opt_state[1].step:item(), 1)
  trainer:train_step { examples = examples }
  expect_equal(trainer.step, 2)
end)

test("alone in one process: the results, an own Deployer, the errors", function()
  local deployer = redco.Deployer { seed = 1, verbose = false }
  torch.manual_seed(5)
  local expected = torch.randn { 2 }
  torch.manual_seed(5)
  local results = deployer:alone(function(own)
    local trainer = new_trainer { deployer = own }
    trainer:train_step { examples = examples }
    return { w = trainer.params.w:detach(), n = own.n_processes, draw = torch.randn { 2 } }
  end)
  expect_equal(#results, 1)
  expect_equal(results[1].n, 1)
  assert(torch.equal(torch.randn { 2 }, expected))
  expect_equal(deployer:alone(function() end)[1], false)
  expect_error(function() deployer:alone(function() error "no luck" end) end, "no luck")
  expect_error(function() deployer:alone(function() return { print } end) end, "function")
  expect_error(function() deployer:alone(3) end, "expected a function")
end)

test("refusals", function()
  local trainer = new_trainer()
  expect_error(function() fit(trainer, { on_step = 3 }) end, "on_step")
  expect_error(function() fit(trainer, { on_stop = print }) end, "on_stop")
  expect_error(function() fit(trainer, { on_step = function() error "in the hook" end }) end,
    "in the hook")
  expect_error(function() new_trainer { custom_state = 3 } end, "custom_state: expected a table")
  expect_error(function() new_trainer { custom_state = { f = print } } end, "custom_state", "f")
  local own = { n = 1 }
  trainer = new_trainer { custom_state = own,
    deployer = redco.Deployer { seed = 1, verbose = false, workdir = testing.folder() .. "/bad" } }
  own.f = print
  expect_error(function() trainer:save_ckpt { ckpt_name = "x" } end, "custom_state")
end)

testing.finish()
