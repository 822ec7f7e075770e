-- Steps of optimizers in a script's own loop: the same as a Trainer's, for every optimizer; their
-- states in checkpoints; groups, averages and learning rates that follow a metric; refusals.
local optimizer_cases = require "optimizer_cases"
local redco = require "redco"
local testing = require "testing"

local torch, optim, tree = redco.torch, redco.optim, redco.tree
local test, expect_error = testing.test, testing.expect_error
local expect_close, expect_equal = testing.expect_close, testing.expect_equal

local n_steps = 6
local generator = torch.Generator(7)
local function randn(sizes) return torch.randn(sizes, { generator = generator }) end

local start = { body = { weight = randn { 4, 3 }, bias = randn { 5 } }, head = randn { 30, 20 } }
local all_grads = {}
for i = 1, n_steps do
  all_grads[i] = { body = { weight = randn { 4, 3 }, bias = randn { 5 } }, head = randn { 30, 20 } }
end

local makers = {
  chained = function()
    return optim.chain { optim.clip_by_value(0.5), optim.clip_by_global_norm(1),
      optim.add_decayed_weights { weight_decay = 0.1, mask = { "weight", "head" } },
      optim.sgd { learning_rate = 0.1 }, optim.lookahead { every = 2, alpha = 0.3 },
      optim.ema { decay = 0.9 } }
  end,
  frozen = function()
    return optim.multi { { "head", "frozen" }, { "body.*", optim.adamw { learning_rate = 0.1 } } }
  end,
  plateau = function()
    return optim.adamw { learning_rate = optim.on_plateau { value = 0.1, patience = 0 } }
  end,
}
for name, make in pairs(optimizer_cases) do makers[name] = make end

local function copy(params) return tree.map(function(leaf) return leaf:clone() end, params) end

-- Steps `first` to `last` in place.
local function step_by_hand(optimizer, state, params, first, last)
  for i = first or 1, last or n_steps do optimizer:step(all_grads[i], state, params) end
  return params
end

local function trained_by_hand(optimizer)
  local params = copy(start)
  local state = optimizer:init(params)
  return step_by_hand(optimizer, state, params), state
end

local function expect_same(actual, expected)
  local leaves = tree.leaves(actual)
  for i, leaf in ipairs(tree.leaves(expected)) do
    if torch.is_tensor(leaf) then
      assert(torch.equal(leaves[i]:detach(), leaf:detach()), "leaf " .. i .. " differs")
    else
      expect_equal(leaves[i], leaf)
    end
  end
end

for name, make in pairs(makers) do
  test(name .. ": by hand as in a Trainer, bit for bit", function()
    local optimizer, index = make(), 0
    local trainer = redco.Trainer {
      deployer = redco.Deployer { seed = 1, verbose = false }, optimizer = optimizer,
      params = copy(start), collate_fn = function() return {} end,
      loss_fn = function(_, _, params)
        index = index + 1
        local loss = 0
        for i, leaf in ipairs(tree.leaves(params)) do
          loss = loss + (leaf * tree.leaves(all_grads[index])[i]):sum()
        end
        return loss
      end,
    }
    for _ = 1, n_steps do trainer:train_step { examples = { 1 } } end
    local params, state = trained_by_hand(optimizer)
    expect_same(trainer.params, params)
    expect_same(trainer.state.opt_state, state.opt_state)
    expect_equal(state.step, n_steps)
    assert(name == "frozen" or not torch.equal(params.head, start.head))
    assert(not torch.equal(params.body.bias, start.body.bias))
  end)

  test(name .. ": update changes nothing and returns what step does", function()
    local optimizer = make()
    local params, before = copy(start), copy(all_grads[1])
    local state = optimizer:init(params)
    for i = 1, n_steps do
      local kept = copy(params)
      local updates, next_state = optimizer:update(all_grads[i], state, params)
      expect_same(params, kept)
      expect_equal(state.step, i - 1)
      params, state = tree.map(function(p, u) return p + u end, params, updates), next_state
    end
    expect_same(all_grads[1], before)
    local expected = trained_by_hand(optimizer)
    for i, leaf in ipairs(tree.leaves(params)) do
      expect_close(leaf, tree.leaves(expected)[i], name == "muon" and 1e-2 or 1e-5, 1e-6)
    end
  end)

  test(name .. ": a saved state goes on bit for bit", function()
    local optimizer = make()
    local folder = os.tmpname()
    os.remove(folder)
    local deployer = redco.Deployer { seed = 1, verbose = false }
    local params = copy(start)
    local state = optimizer:init(params)
    step_by_hand(optimizer, state, params, 1, 3)
    deployer:save_ckpt { ckpt_dir = folder, params = params, opt_state = state }
    local loaded = deployer:load_ckpt { ckpt_dir = folder }
    os.execute("rm -r " .. folder)
    step_by_hand(optimizer, loaded.opt_state, loaded.params, 4)
    local expected, expected_state = trained_by_hand(optimizer)
    expect_same(loaded.params, expected)
    expect_same(loaded.opt_state, expected_state)
  end)
end

test("multi: each part has its own optimizer, learning rate and clipping", function()
  local optimizer = optim.multi {
    { "bias", optim.sgd { learning_rate = 1 } },
    { { "body.weight", "head" }, optim.chain { optim.clip_by_global_norm(1e-3),
      optim.sgd { learning_rate = 1 } } },
  }
  local params = copy(start)
  local state = optimizer:init(params)
  optimizer:step(all_grads[1], state, params)
  expect_close(params.body.bias, start.body.bias - all_grads[1].body.bias)
  local square = (params.head - start.head):square():sum()
    + (params.body.weight - start.body.weight):square():sum()
  assert(math.abs(square:sqrt():item() - 1e-3) < 1e-6)
  expect_equal(optimizer:learning_rate(state), 1)
end)

test("multi: a part without gradients stays as it is, with its state", function()
  local optimizer = optim.multi {
    { "body.*", optim.adamw { learning_rate = 0.1 } }, { "head", optim.adam { learning_rate = 1 } },
  }
  local params = copy(start)
  local state = optimizer:init(params)
  optimizer:step({ head = all_grads[1].head }, state, params)
  expect_same(params.body, start.body)
  expect_equal(state.opt_state[1].step:item(), 0)
  expect_equal(state.opt_state[2].step:item(), 1)
end)

test("ema: the averages of the parameters, also in 16 bits", function()
  local optimizer = optim.chain { optim.sgd { learning_rate = 1 },
    optim.ema { decay = function(step) return step / (step + 1) end } }
  local params = tree.map(function(leaf) return leaf:to "bfloat16" end, start)
  local state, sum = optimizer:init(params), 0
  for i = 1, 4 do
    optimizer:step(tree.map(function(leaf) return leaf:to "bfloat16" end, all_grads[i]), state,
      params)
    sum = sum + params.head:float()
  end
  local averages = optimizer:averages(state, params)
  expect_equal(averages.head.dtype, "float32")
  expect_close(averages.head, sum / 4, 1e-6, 1e-6)
end)

test("sgd in 16 bits, where LibTorch's fused operator is wrong", function()
  for _, dtype in ipairs { "bfloat16", "float16" } do
    local params, grads = { w = randn { 40 }:to(dtype) }, { w = randn { 40 }:to(dtype) }
    local expected, buffer = params.w:double(), torch.zeros({ 40 }, { dtype = "float64" })
    local optimizer = optim.sgd { learning_rate = 0.05, momentum = 0.5 }
    local state = optimizer:init(params)
    for _ = 1, 2 do
      optimizer:step(grads, state, params)
      buffer = buffer * 0.5 + grads.w:double()
      expected = expected - 0.05 * buffer
    end
    expect_close(params.w:double(), expected, 1e-2, 1e-2)
  end
end)

test("on_plateau: reduced after patience evaluations without an improvement", function()
  local optimizer = optim.sgd { learning_rate = optim.on_plateau {
    value = 1, factor = 0.5, patience = 1, cooldown = 1, min_value = 0.2, metric = "error" } }
  local params = { w = torch.zeros { 1 } }
  local state, rates = optimizer:init(params), {}
  for i, value in ipairs { 3, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1 } do
    optimizer:observe(state, { error = value })
    rates[i] = optimizer:learning_rate(state)
  end
  expect_equal(table.concat(rates, " "), "1 1 1 0.5 0.5 0.5 0.25 0.25 0.25 0.2 0.2 0.2 0.2 0.2 0.2")
  optimizer:step({ w = torch.ones { 1 } }, state, params)
  expect_close(params.w, torch.full({ 1 }, -0.2))
  expect_error(function() optimizer:observe(state, { loss = 1 }) end,
    "the evaluation has no metric 'error'; it has loss")
end)

test("schedules", function()
  local function values(schedule, ...)
    local list = {}
    for i, step in ipairs { ... } do list[i] = ("%.4g"):format(schedule(step)) end
    return table.concat(list, " ")
  end
  expect_equal(values(optim.constant_schedule { init_value = 0.5, peak_value = 1,
    warmup_steps = 4 }, 0, 1, 4, 9), "0.5 0.625 1 1")
  expect_equal(values(optim.polynomial_schedule { peak_value = 1, power = 2, warmup_steps = 2,
    total_steps = 12 }, 0, 1, 2, 7, 12, 20), "0 0.5 1 0.25 0 0")
  expect_equal(values(optim.exponential_schedule { peak_value = 1, decay_rate = 0.5,
    decay_steps = 2, warmup_steps = 1 }, 0, 1, 2, 3, 5), "0 1 0.7071 0.5 0.25")
  expect_equal(values(optim.exponential_schedule { peak_value = 1, decay_rate = 0.5,
    decay_steps = 2, staircase = true, end_value = 0.3 }, 0, 1, 2, 3, 4, 9), "1 1 0.5 0.5 0.3 0.3")
  expect_equal(values(optim.one_cycle_schedule { peak_value = 1, total_steps = 11,
    pct_start = 6 / 11, anneal_strategy = "linear", div_factor = 4, final_div_factor = 5 },
    0, 1, 5, 10, 30),
    "0.25 0.4 1 0.05 0.05")
  for decay, half in pairs { linear = "0.5", cosine = "0.5", sqrt = "0.2929" } do
    expect_equal(values(optim.wsd_schedule { peak_value = 1, warmup_steps = 2, decay_steps = 4,
      total_steps = 20, decay = decay }, 0, 1, 2, 16, 18, 20, 30), "0 0.5 1 1 " .. half .. " 0 0")
  end
  local linear = optim.linear_schedule { peak_value = 1, warmup_steps = 4, total_steps = 8 }
  expect_equal(values(optim.piecewise_schedule { values = { linear, 0.5, linear },
    boundaries = { 4, 6 } }, 0, 3, 4, 5, 6, 8, 10), "0 0.75 0.5 0.5 0 0.5 1")
end)

test("refusals: options", function()
  for _, case in ipairs {
    { "rmsprop", { learning_rate = 0.1, alpha = 1 }, "alpha = 1 must be at least 0" },
    { "rmsprop", { learning_rate = -0.1 }, "must be finite and not below 0, it is -0.1" },
    { "adagrad", { learning_rate = 0.1, eps = -1 }, "eps = -1 must be at least 0" },
    { "lamb", { learning_rate = 0.1, betas = { 0.9 } }, "betas: expected a list of two numbers" },
    { "muon", { learning_rate = 0.1, ns_steps = 0 }, "ns_steps = 0 must be from 1 to 99" },
    { "muon", { learning_rate = 0.1, ns_coefficients = { 1, 2 } }, "a list of three numbers" },
    { "muon", { learning_rate = 0.1, adjust_lr_fn = "x" }, 'adjust_lr_fn = "x" is not one of' },
    { "adamw", { learning_rate = 0.1, mask = 3 }, "mask: expected a pattern of names" },
    { "ema", { decay = -1 }, "must be finite and not below 0" },
    { "ema", { decay = 0.9, every = 0 }, "every = 0 must be positive" },
    { "lookahead", { alpha = 2 }, "alpha = 2 must be more than 0 and at most 1" },
    { "add_decayed_weights", { weight_decay = -1 }, "weight_decay = -1 must be at least 0" },
    { "on_plateau", { value = -1 }, "value = -1 must be at least 0" },
    { "on_plateau", { value = 1, mode = "up" }, 'mode = "up" is not one of' },
    { "one_cycle_schedule", { peak_value = 1, total_steps = 1 }, "total_steps = 1 must be more" },
    { "wsd_schedule", { peak_value = 1, warmup_steps = 5, decay_steps = 5, total_steps = 9 },
      "together at most total_steps = 9" },
    { "piecewise_schedule", { values = { 1, 2 }, boundaries = {} }, "must be one value more" },
    { "piecewise_schedule", { values = { 1, 2, 3 }, boundaries = { 5, 5 } }, "more than 5" },
    { "exponential_schedule", { peak_value = 1, decay_rate = -2 }, "decay_rate = -2 must be" },
  } do
    local name, options, text = unpack(case)
    expect_error(function() optim[name](options) end, text)
  end
  expect_error(function() optim.clip_by_value(-1) end, "max_value = -1 must be positive")
  expect_error(function() optim.chain { optim.ema { decay = 0.9 }, optim.sgd { learning_rate = 1 } }
  end, "entry 1 of 2 works on the updated parameters: it must follow")
  expect_error(function()
    optim.chain { optim.sgd { learning_rate = 1 }, optim.sgd { learning_rate = 1 } }
  end, "entry 2 of 2 updates the parameters, as entry 1 does")
  expect_error(function() optim.multi { { "*", optim.clip_by_value(1) } } end,
    'entry 1, "*", does not update the parameters')
  expect_error(function() optim.multi { { "*" } } end, "entry 1: expected {pattern, optimizer}")
end)

test("refusals: trees, states and patterns that do not fit", function()
  local adamw, sgd = optim.adamw { learning_rate = 1 }, optim.sgd { learning_rate = 1 }
  local params = copy(start)
  local state = adamw:init(params)
  local function refuses(text, optimizer, grads, given)
    local before = copy(params)
    expect_error(function()
      optimizer:step(grads or all_grads[1], given or state, params)
    end, text)
    expect_same(params, before)
  end
  refuses("optimizer state: 'exp_avg': the optimizer has no such entry; is it the state of this",
    sgd)
  refuses("optimizer state: 'exp_avg': it is missing", adamw, nil, { step = 0, opt_state = {} })
  refuses("'exp_avg.head': it is a tensor of shape [5], expected a tensor of shape [30, 20]", adamw,
    nil, (function()
      local other = adamw:init(params)
      other.opt_state.exp_avg.head = torch.zeros { 5 }
      return other
    end)())
  refuses("'exp_avg.head': it is missing", adamw, nil,
    { step = 0, opt_state = adamw:init({ body = start.body }).opt_state })
  refuses("it has no opt_state", adamw, nil, { step = 1 })
  refuses("the gradient of 'head' has shape [2], the parameter [30, 20]", adamw,
    { head = torch.zeros { 2 } })
  refuses("there is no parameter 'hed', but a gradient of that name", adamw,
    { hed = torch.zeros { 2 } })
  refuses("no parameter has a gradient", adamw, {})
  expect_error(function() optim.clip_by_value(1):step(all_grads[1], state, params) end,
    "it does not update parameters")
  expect_error(function()
    optim.multi { { "haed", sgd }, { "*", sgd } }:init(params)
  end, 'entry 1, "haed", selects no parameter')
  expect_error(function() optim.multi { { "head", sgd } }:init(params) end,
    "no entry selects the parameter 'body.bias'")
  expect_error(function()
    optim.adamw { learning_rate = 1, mask = { "weight", "bais" } }:init(params)
  end, 'adamw: mask: the pattern "bais" matches no parameter')
  expect_error(function() optim.freeze(sgd, "haed"):init(params) end,
    'freeze: the pattern "haed" matches no parameter')
  expect_error(function() optim.muon { learning_rate = 1 }:init(params) end,
    "muon: the parameter 'body.bias' has the shape [5], but muon updates matrices")
  expect_error(function() adamw:averages(state, params) end, "it keeps no averages")
  expect_error(function() adamw:init { a = params.head, b = params.head } end, "are one tensor")
  expect_error(function()
    redco.Trainer { deployer = redco.Deployer { seed = 1, verbose = false }, params = params,
      optimizer = sgd, opt_state = state.opt_state, collate_fn = function() end,
      loss_fn = function() end }
  end, "optimizer state: 'exp_avg': the optimizer has no such entry")
end)

testing.finish()
