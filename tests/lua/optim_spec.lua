-- redco.optim from Lua: five steps against torch.optim, masks, chains, schedules, refusals.
local redco = require "redco"
local testing = require "testing"

local torch, optim = redco.torch, redco.optim
local test, expect_error = testing.test, testing.expect_error
local expect_close, expect_equal = testing.expect_close, testing.expect_equal

-- Made by tests/tools/make_nn_cases.py with torch.optim.
local stored = torch.load "nn_cases.safetensors"
local names = { "a", "b", "c" }

--- The parameters after `n_steps` steps on the stored gradients, from the stored start.
local function run(optimizer, n_steps, grads_of)
  local params, step = {}, 0
  for _, name in ipairs(names) do params[name] = stored["optim.start." .. name]:clone() end
  local trainer = redco.Trainer {
    deployer = redco.Deployer { seed = 1, verbose = false }, params = params, optimizer = optimizer,
    collate_fn = function() return {} end,
    -- A loss whose gradient is the stored one.
    loss_fn = function(_, _, p)
      step = step + 1
      local loss
      for _, name in ipairs(names) do
        local grad = grads_of and grads_of(name, step) or stored[("optim.grad%d.%s"):format(step,
          name)]
        local term = (p[name] * grad):sum()
        loss = loss and loss + term or term
      end
      return loss
    end,
  }
  local examples = {}
  for i = 1, n_steps do examples[i] = i end
  trainer:fit { train_examples = examples, per_device_batch_size = 1, n_epochs = 1 }
  expect_equal(trainer.step, n_steps)
  return trainer.params, trainer
end

local function expect_case(case, optimizer)
  local params = run(optimizer, 5)
  for _, name in ipairs(names) do
    local ok, message = pcall(expect_close, params[name]:detach(),
      stored[("optim.%s.%s"):format(case, name)], 1e-5, 2e-6)
    if not ok then error(("%s, %s: %s"):format(case, name, message)) end
  end
end

local function no_vectors(_, param) return param:dim() > 1 end

local cases = {
  adamw = function() return optim.adamw { learning_rate = 0.02 } end,
  adamw_options = function()
    return optim.adamw { learning_rate = 0.02, betas = { 0.8, 0.95 }, eps = 1e-3,
      weight_decay = 0.3 }
  end,
  adamw_mask = function()
    return optim.adamw { learning_rate = 0.02, weight_decay = 0.5, mask = no_vectors }
  end,
  adamw_schedule = function()
    return optim.adamw { learning_rate = function(step) return 0.01 * (step + 1) end }
  end,
  adamw_clip = function()
    return optim.chain { optim.clip_by_global_norm(0.7), optim.adamw { learning_rate = 0.02 } }
  end,
  adam = function() return optim.adam { learning_rate = 0.02 } end,
  adam_decay = function() return optim.adam { learning_rate = 0.02, weight_decay = 0.1 } end,
  sgd = function() return optim.sgd { learning_rate = 0.02 } end,
  sgd_momentum = function()
    return optim.sgd { learning_rate = 0.02, momentum = 0.9, dampening = 0.5, weight_decay = 0.1 }
  end,
  sgd_nesterov = function()
    return optim.sgd { learning_rate = 0.02, momentum = 0.9, nesterov = true }
  end,
  sgd_clip = function()
    return optim.chain { optim.clip_by_global_norm(1.5), optim.sgd { learning_rate = 0.02 } }
  end,
  adafactor = function() return optim.adafactor { learning_rate = 0.02, weight_decay = 0 } end,
  adafactor_options = function()
    return optim.adafactor { learning_rate = 0.05, beta2_decay = -0.5, d = 1.1, eps1 = 1e-6,
      eps2 = 1e-2, weight_decay = 0.1 }
  end,
  lion = function() return optim.lion { learning_rate = 0.02, weight_decay = 0.1 } end,
}
for case, make in pairs(cases) do
  test(case .. ": five steps", function() expect_case(case, make()) end)
end

test("every stored case is read, and the cases differ from each other", function()
  local seen = {}
  for name, tensor in pairs(stored) do
    local case = name:match "^optim%.([%w_]+)%.a$"
    if case and case ~= "start" and not case:find "^grad%d$" then
      assert(cases[case], "no test reads " .. case)
      local sum = ("%.7f"):format(tensor:sum():item())
      assert(not seen[sum], case .. " is like " .. tostring(seen[sum]))
      seen[sum] = case
    end
  end
  local n = 0
  for _ in pairs(seen) do n = n + 1 end
  expect_equal(n, 14)
end)

test("a mask is called with the dotted name and the parameter", function()
  local seen = {}
  local optimizer = optim.adamw { learning_rate = 0.1, mask = function(name, param)
    seen[name] = table.concat(param.shape, ",")
    return true
  end }
  local trainer = redco.Trainer {
    deployer = redco.Deployer { seed = 1, verbose = false }, optimizer = optimizer,
    params = { layers = { { w = torch.ones { 2, 3 } } }, b = torch.ones { 4 } },
    collate_fn = function() return {} end,
    loss_fn = function(_, _, p) return p.b:sum() + p.layers[1].w:sum() end,
  }
  trainer:train { examples = { 1 }, per_device_batch_size = 1 }
  expect_equal(seen["layers.1.w"], "2,3")
  expect_equal(seen.b, "4")
end)

test("a mask keeps the decay, and only that, from a parameter", function()
  local function zero(name) return torch.zeros_like(stored["optim.start." .. name]) end
  for _, name in ipairs { "adamw", "lion", "adam", "sgd", "adafactor" } do
    local optimizer = optim[name] { learning_rate = 0.1, weight_decay = 0.5, mask = no_vectors }
    local params = run(optimizer, 1, zero)
    expect_close(params.b:detach(), stored["optim.start.b"])
    assert(params.a:detach():ne(stored["optim.start.a"]):any():item(), name .. ": no decay")
  end
end)

test("clip_by_global_norm leaves small gradients and scales large ones together", function()
  local grads = { a = torch.full({ 4, 3 }, 3), b = torch.full({ 5 }, -4), c = torch.zeros { 2, 3,
    4 } }
  local norm = math.sqrt(12 * 9 + 5 * 16)
  local function given(name) return grads[name] end
  for _, limit in ipairs { 2, norm + 1 } do
    local params = run(optim.chain { optim.clip_by_global_norm(limit),
      optim.sgd { learning_rate = 1 } }, 1, given)
    local scale = math.min(1, limit / norm)
    for _, name in ipairs(names) do
      expect_close(params[name]:detach(), stored["optim.start." .. name] - grads[name] * scale,
        1e-5, 1e-5)
    end
  end
end)

test("freeze leaves parameters out: no update, no state", function()
  local optimizer = optim.freeze(optim.adamw { learning_rate = 0.1 },
    function(name) return name == "b" end)
  local params, trainer = run(optimizer, 2)
  assert(torch.equal(params.b, stored["optim.start.b"]))
  assert(not torch.equal(params.a:detach(), stored["optim.start.a"]))
  for _, path in ipairs(redco.tree.paths(trainer.state.opt_state)) do
    assert(not path:find "%.b$", path)
  end
end)

test("the state of an optimizer is a tree, and a run goes on from it", function()
  local function optimizer() return optim.adamw { learning_rate = 0.05, weight_decay = 0.1 } end
  local whole = run(optimizer(), 5)
  local half, trainer = run(optimizer(), 3)
  local saved = { params = half, opt_state = trainer.state.opt_state }
  assert(#redco.tree.leaves(saved.opt_state) >= 6)
  local path = os.tmpname()
  torch.save(saved, path)
  saved = torch.load(path)
  os.remove(path)
  local step = 3
  local again = redco.Trainer {
    deployer = redco.Deployer { seed = 1, verbose = false }, params = saved.params,
    opt_state = saved.opt_state, step = 3, optimizer = optimizer(),
    collate_fn = function() return {} end,
    loss_fn = function(_, _, p)
      step = step + 1
      local loss = torch.tensor(0.0)
      for _, name in ipairs(names) do
        loss = loss + (p[name] * stored[("optim.grad%d.%s"):format(step, name)]):sum()
      end
      return loss
    end,
  }
  again:train { examples = { 1, 2 }, per_device_batch_size = 1 }
  expect_equal(again.step, 5)
  for _, name in ipairs(names) do
    expect_close(again.params[name]:detach(), whole[name]:detach(), 1e-6, 1e-7)
  end
end)

test("schedules: straight lines and half a cosine", function()
  local linear = optim.linear_schedule { init_value = 0.1, peak_value = 1, end_value = 0.2,
    warmup_steps = 10, total_steps = 50 }
  local cosine = optim.cosine_schedule { init_value = 0.1, peak_value = 1, end_value = 0.2,
    warmup_steps = 10, total_steps = 50 }
  local function near(actual, expected)
    assert(math.abs(actual - expected) < 1e-9, ("expected %g, got %g"):format(expected, actual))
  end
  for step = 0, 10 do
    near(linear(step), 0.1 + 0.9 * step / 10)
    near(cosine(step), 0.1 + 0.9 * step / 10)
  end
  for step = 10, 50 do
    local part = (step - 10) / 40
    near(linear(step), 1 - 0.8 * part)
    near(cosine(step), 0.2 + 0.8 * (1 + math.cos(math.pi * part)) / 2)
  end
  near(linear(70), 0.2)
  near(cosine(70), 0.2)
  near(optim.linear_schedule { peak_value = 2, total_steps = 4 }(0), 2)
  near(optim.linear_schedule { peak_value = 2, total_steps = 4 }(4), 0)
end)

test("schedules that cannot be are refused", function()
  for _, name in ipairs { "linear_schedule", "cosine_schedule" } do
    local make = optim[name]
    expect_error(function() make { total_steps = 5 } end, "optim_spec.lua:", "peak_value")
    expect_error(function() make { peak_value = 1 } end, "optim_spec.lua:", "total_steps")
    expect_error(function() make { peak_value = 1, total_steps = 5, warm_up_steps = 2 } end,
      "optim_spec.lua:", "'warm_up_steps'", "'warmup_steps'")
    expect_error(function() make { peak_value = 1, total_steps = 5, warmup_steps = 6 } end,
      "optim_spec.lua:", "6", "5")
    expect_error(function() make { peak_value = 1, total_steps = -5 } end, "optim_spec.lua:", "-5")
    expect_error(function() make { peak_value = "1", total_steps = 5 } end, "peak_value",
      "a number")
    expect_error(function() make { peak_value = 1, total_steps = 2.5 } end, "total_steps",
      "an integer")
    expect_error(function() make { peak_value = 1, total_steps = 5 } "x" end,
      "optim_spec.lua:", "step")
  end
end)

test("a refusal of a schedule names it", function()
  for _, name in ipairs { "linear_schedule", "cosine_schedule" } do
    expect_error(function() optim[name] { total_steps = 5 } end, "redco.optim." .. name)
  end
end)

test("wrong options are refused with the nearest name", function()
  local wrong = { adamw = { "weight_deacy", "weight_decay" }, adam = { "beta", "betas" },
    sgd = { "nesterow", "nesterov" }, lion = { "weight_decy", "weight_decay" },
    adafactor = { "eps_1", "eps1" } }
  for name, option in pairs(wrong) do
    expect_error(function() optim[name] { learning_rate = 0.1, [option[1]] = 1 } end,
      "optim_spec.lua:", "redco.optim." .. name, "'" .. option[1] .. "'", "'" .. option[2] .. "'")
    expect_error(function() optim[name] {} end, "optim_spec.lua:", "redco.optim." .. name,
      "learning_rate")
    expect_error(function() optim[name] { learning_rate = "0.1" } end, "optim_spec.lua:",
      "learning_rate", "a number or a function")
    expect_error(function() optim[name] { learning_rate = 0.1, weight_decay = "no" } end,
      "weight_decay")
    expect_error(function() optim[name](0.1) end, "optim_spec.lua:", "named arguments")
  end
  expect_error(function() optim.adamw { learning_rate = 0.1, betas = 0.9 } end, "optim_spec.lua:",
    "betas")
  expect_error(function() optim.adamw { learning_rate = 0.1, betas = { 0.9 } } end, "betas",
    "two numbers")
  expect_error(function() optim.sgd { learning_rate = 0.1, nesterov = 1 } end, "nesterov")
  expect_error(function() optim.adamw { learning_rate = 0.1, mask = {} } end, "mask", "a function")
end)

test("betas that are no numbers are refused by that name", function()
  expect_error(function() optim.adamw { learning_rate = 0.1, betas = { "a", "b" } } end,
    "optim_spec.lua:", "betas", "two numbers")
end)

test("a learning rate below zero, or none at all, is refused", function()
  expect_error(function() optim.adamw { learning_rate = -1 } end, "optim_spec.lua:", "-1")
  expect_error(function() run(optim.sgd { learning_rate = function() return 0 / 0 end }, 1) end,
    "learning_rate", "nan")
end)

test("values that cannot be are refused", function()
  expect_error(function() optim.adamw { learning_rate = 0.1, betas = { 0.9, 1 } } end,
    "optim_spec.lua:")
  expect_error(function() optim.adamw { learning_rate = 0.1, eps = -1 } end, "optim_spec.lua:")
  expect_error(function() optim.sgd { learning_rate = 0.1, nesterov = true } end, "optim_spec.lua:",
    "nesterov", "momentum")
  expect_error(function() optim.clip_by_global_norm(0) end, "optim_spec.lua:")
  expect_error(function() optim.clip_by_global_norm "1" end, "optim_spec.lua:", "a number")
end)

test("chain and freeze check what they are given", function()
  local adamw, clip = optim.adamw { learning_rate = 0.1 }, optim.clip_by_global_norm(1)
  expect_error(function() optim.chain {} end, "optim_spec.lua:")
  expect_error(function() optim.chain { adamw, clip } end, "optim_spec.lua:")
  expect_error(function() optim.chain { adamw, adamw } end, "optim_spec.lua:")
  expect_error(function() optim.chain { clip, 5 } end, "optim_spec.lua:", "entry 2")
  expect_error(function() optim.chain(clip) end, "optim_spec.lua:", "a list")
  expect_error(function() optim.chain { clip, nil, adamw } end, "optim_spec.lua:")
  expect_error(function() optim.freeze(adamw) end, "optim_spec.lua:", "a function")
  expect_error(function() optim.freeze({}, print) end, "optim_spec.lua:", "optimizer")
  expect_error(function() run(clip, 1) end, "optim_spec.lua:", "chain")
end)

test("a function that fails or gives no number is reported with its line", function()
  expect_error(function()
    run(optim.sgd { learning_rate = function() return "fast" end }, 1)
  end, "learning_rate", "step 0", "fast", "optim_spec.lua:")
  local message = expect_error(function()
    run(optim.sgd { learning_rate = function() error "no rate today" end }, 1)
  end, "no rate today")
  assert(message:find "^optim_spec.lua:%d+: no rate today", message)
  expect_error(function()
    run(optim.adamw { learning_rate = 1, mask = function() error "no mask" end }, 1)
  end, "optim_spec.lua:", "no mask")
end)

testing.finish()
