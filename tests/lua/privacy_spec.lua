-- redco.privacy: the accountants and the gradients against Opacus, and bad input.
local cases = require "algorithm_cases"
local redco = require "redco"
local testing = require "testing"

local privacy, torch = redco.privacy, redco.torch
local test, expect_equal = testing.test, testing.expect_equal
local expect_close, expect_error = testing.expect_close, testing.expect_error

local function expect_near(actual, expected, tolerance)
  local off = math.abs(actual / expected - 1)
  if off ~= off or off > tolerance then
    error(("expected %.12g, got %.12g"):format(expected, actual), 2)
  end
end

local function run_of(row, accountant)
  return { noise_multiplier = row.noise_multiplier, sample_rate = row.sample_rate,
    steps = row.steps, delta = row.delta, accountant = accountant }
end

for _, folder in ipairs(cases.folders "dp_sgd") do
  local info, arrays = cases.read(folder)

  test("epsilon is that of Opacus: " .. folder, function()
    assert(#info.epsilon == 13)
    for _, row in ipairs(info.epsilon) do
      expect_near(privacy.epsilon(run_of(row, "rdp")), row.rdp, 1e-6)
      expect_near(privacy.epsilon(run_of(row)), row.prv, 1e-4)
    end
    local two = info.epsilon_of_two_phases
    local first, second = unpack(two.history)
    local function of_both(accountant)
      return privacy.epsilon { noise_multiplier = second[1], sample_rate = second[2],
        steps = second[3], delta = two.delta, accountant = accountant, earlier = {
          { noise_multiplier = first[1], sample_rate = first[2], steps = first[3] } } }
    end
    expect_near(of_both "rdp", two.rdp, 1e-6)
    expect_near(of_both "prv", 2.4540915, 1e-4)  -- by Opacus's PRVAccountant
  end)

  test("the noise for a budget is that of Opacus: " .. folder, function()
    for _, row in ipairs(info.noise_multiplier) do
      local found = privacy.noise_multiplier { target_epsilon = row.target_epsilon,
        delta = row.delta, sample_rate = row.sample_rate, steps = row.steps, accountant = "rdp" }
      expect_near(found, row.noise_multiplier, 1e-9)
    end
  end)

  for _, tag in ipairs { "conv", "text" } do
    local case = info.models[tag]
    local params, batch = arrays(tag .. ".params."), arrays(tag .. ".")
    batch = { inputs = batch.inputs, labels = batch.labels }
    for _, micro_batch_size in ipairs { 64, 5 } do
      test(("gradients of the %s model by %d: %s"):format(tag, micro_batch_size, folder), function()
        local options = { max_grad_norm = case.max_grad_norm, noise_multiplier = 0,
          expected_batch_size = case.expected_batch_size, micro_batch_size = micro_batch_size }
        local loss = cases.private_losses[tag]
        local gradients, found = privacy.gradients(loss, params, batch, options)
        cases.expect_trees(gradients, arrays(tag .. ".grad.sigma0.0."), "without noise")
        cases.expect_near(found.loss, case.loss, "the loss")
        local noisy = redco.tree.map(function(gradient, noise)
          return gradient + noise * (1.1 * case.max_grad_norm / case.expected_batch_size)
        end, gradients, arrays(tag .. ".noise."))
        cases.expect_trees(noisy, arrays(tag .. ".grad.sigma1.1."), "with noise")
        local n_clipped = 0
        for _, norm in ipairs(case.per_example_grad_norms) do
          if norm > case.max_grad_norm then n_clipped = n_clipped + 1 end
        end
        cases.expect_near(found.clipped, n_clipped / 12, "the clipped fraction")
      end)
    end
  end
end

local generator = torch.Generator(1)
local params = { w = torch.randn({ 40, 50 }, { generator = generator }), ids = torch.arange(3),
  scale = torch.tensor(1, { dtype = "float32" }) }
local function loss(p, example) return (p.w:matmul(example.x) * p.scale):square():mean() end
local x = torch.randn({ 9, 50 }, { generator = generator })
local function options(changes)
  local o = { max_grad_norm = 1, noise_multiplier = 2, expected_batch_size = 10, rng = generator }
  for name, value in pairs(changes or {}) do o[name] = value end
  return o
end

test("without noise and clipping it is the gradient of the mean", function()
  local gradients, info = privacy.gradients(loss, params, { x = x },
    options { max_grad_norm = math.huge, noise_multiplier = 0, expected_batch_size = 9 })
  local function mean(p) return (x:matmul(p.w:t()) * p.scale):square():mean() end
  local value, expected = redco.value_and_grad(mean)(params)
  expect_close(gradients.w, expected.w, 1e-5, 1e-7)
  expect_close(gradients.scale, expected.scale)
  expect_close(info.loss, value)
  expect_equal(gradients.ids, false)
  expect_equal(gradients.w.requires_grad, false)
end)

test("the noise has the standard deviation of its definition", function()
  local gradients = privacy.gradients(loss, params, { x = x:narrow(0, 0, 0) }, options())
  local std = gradients.w:square():mean():sqrt():item()
  assert(std > 0.19 and std < 0.21, std)  -- 2 * 1 / 10
end)

test("an empty batch gives noise only", function()
  for _, batch in ipairs { { x = x:narrow(0, 0, 0) }, {} } do
    local gradients, info = privacy.gradients(loss, params, batch, options { noise_multiplier = 0 })
    expect_close(gradients.w, torch.zeros { 40, 50 })
    expect_equal(info.n_examples, 0)
    expect_equal(info.loss, 0)
    expect_equal(info.clipped, 0)
  end
end)

local function peak_bytes()
  return tonumber(redco.data.read "/proc/self/status":match "VmHWM:%s+(%d+)") * 1024
end

test("the memory does not grow with the batch", function()
  if os.getenv "REDCO_SANITIZE" == "1" then return end  -- which keeps freed memory
  local large = { w = torch.zeros { 400, 250 }, scale = params.scale }
  local function run(n)
    privacy.gradients(loss, large, { x = torch.ones { n, 250 } }, options { micro_batch_size = 8 })
  end
  run(400)
  local before = peak_bytes()
  run(1600)  -- 640 MB of gradients
  assert(peak_bytes() - before < 2e8, peak_bytes() - before)
end)

test("bad arguments are errors", function()
  for name, values in pairs {
    max_grad_norm = { 0, -1, 0 / 0 }, noise_multiplier = { -1, math.huge, 0 / 0 },
    expected_batch_size = { 0, math.huge }, micro_batch_size = { 0, 1.5 },
  } do
    for _, value in ipairs(values) do
      expect_error(function()
        privacy.gradients(loss, params, { x = x }, options { [name] = value })
      end, "privacy_spec.lua", "privacy.gradients", name .. " = " .. tostring(value))
    end
  end
  expect_error(function()
    privacy.gradients(loss, params, { x = x }, { max_grad_norm = 1, noise_multiplier = 1,
      expected_batch_size = 9 })
  end, "needs rng")
  expect_error(function()
    privacy.gradients(loss, params, { x = x, y = torch.zeros { 8 } }, options())
  end, "expected")
  expect_error(function()
    privacy.gradients(loss, params, { x = x },
      options { max_grad_norm = math.huge })
  end, "max_grad_norm")

  local good = { noise_multiplier = 1, sample_rate = 0.01, steps = 10, delta = 1e-5,
    target_epsilon = 1 }
  local function refuse(f, name, value, ...)
    local given = {}
    for key, right in pairs(good) do given[key] = right end
    given[f == privacy.epsilon and "target_epsilon" or "noise_multiplier"] = nil
    given[name] = value
    expect_error(function() f(given) end, "privacy_spec.lua", name, ...)
  end
  for name, values in pairs { sample_rate = { 0, 1.5, -1 }, delta = { 0, 1, 2 },
    steps = { -1, 0.5 }, accountant = { "gdp" } } do
    for _, value in ipairs(values) do
      refuse(privacy.epsilon, name, value, tostring(value))
      refuse(privacy.noise_multiplier, name, value, tostring(value))
    end
  end
  refuse(privacy.epsilon, "noise_multiplier", -1)
  refuse(privacy.noise_multiplier, "target_epsilon", 0)
  refuse(privacy.noise_multiplier, "target_epsilon", 0.005, "cannot be reached")
  good.accountant = "rdp"
  refuse(privacy.noise_multiplier, "target_epsilon", 0.1, "cannot be reached", "prv")
end)

test("no steps cost nothing; without noise there is no bound", function()
  local run = { noise_multiplier = 0, sample_rate = 0.5, steps = 0, delta = 1e-5 }
  expect_equal(privacy.epsilon(run), 0)
  run.steps = 1
  expect_equal(privacy.epsilon(run), math.huge)
  for _, accountant in ipairs { "rdp", "prv" } do
    run.accountant, run.sample_rate, run.noise_multiplier = accountant, 1, 0.05
    assert(privacy.epsilon(run) > 200)
    run.sample_rate, run.noise_multiplier = 1e-7, 50
    assert(privacy.epsilon(run) < 0.2)
  end
end)

testing.finish()
