-- redco.nn.init: distributions, bounds, and what is refused.
local redco = require "redco"
local testing = require "testing"

local torch, init = redco.torch, redco.nn.init
local test, expect_error = testing.test, testing.expect_error
local expect_close, expect_equal = testing.expect_close, testing.expect_equal

local function near(what, actual, expected, tolerance)
  assert(math.abs(actual - expected) <= tolerance,
    ("%s: expected %g +- %g, got %g"):format(what, expected, tolerance, actual))
end

--- Fails unless t looks uniform over [a, b]: bounds, mean, deviation and the quarters.
local function expect_uniform(t, a, b)
  local n, width = t:numel(), b - a
  assert(t:min():item() >= a and t:max():item() <= b, "out of bounds")
  near("mean", t:mean():item(), (a + b) / 2, 4 * width / math.sqrt(12 * n))
  near("deviation", t:std():item(), width / math.sqrt(12), width * 0.02)
  for quarter = 0, 3 do
    local inside = t:ge(a + quarter * width / 4):logical_and(t:lt(a + (quarter + 1) * width / 4))
    near("quarter " .. quarter, inside:float():mean():item(), 0.25, 0.02)
  end
end

--- Fails unless t looks normal: mean, deviation, and the shares within one and two deviations.
local function expect_normal(t, mean, std)
  near("mean", t:mean():item(), mean, 4 * std / math.sqrt(t:numel()))
  near("deviation", t:std():item(), std, std * 0.03)
  local z = ((t - mean) / std):abs()
  near("within one deviation", z:lt(1):float():mean():item(), 0.6827, 0.02)
  near("within two deviations", z:lt(2):float():mean():item(), 0.9545, 0.01)
end

local function generator() return torch.Generator(17) end

test("zeros_, ones_ and constant_ fill in place", function()
  local t = torch.empty { 3, 4 }
  assert(rawequal(init.ones_(t), t))
  expect_close(t, torch.ones { 3, 4 })
  expect_close(init.zeros_(t), torch.zeros { 3, 4 })
  expect_close(init.constant_(t, -2.5), torch.full({ 3, 4 }, -2.5))
end)

test("uniform_", function()
  expect_uniform(init.uniform_(torch.empty { 100, 120 }, { generator = generator() }), 0, 1)
  expect_uniform(init.uniform_(torch.empty { 12000 }, { a = -3, b = 5, generator = generator() }),
    -3, 5)
end)

test("normal_", function()
  expect_normal(init.normal_(torch.empty { 100, 120 }, { generator = generator() }), 0, 1)
  expect_normal(init.normal_(torch.empty { 12000 }, { mean = 3, std = 0.2,
    generator = generator() }),
    3, 0.2)
end)

test("trunc_normal_ stays inside and has the moments of the cut distribution", function()
  local t = init.trunc_normal_(torch.empty { 200, 200 }, { generator = generator() })
  assert(t:abs():max():item() <= 2)
  assert(t:abs():max():item() > 1.95)
  near("mean", t:mean():item(), 0, 0.02)
  near("deviation", t:std():item(), 0.8796, 0.01)  -- of a normal cut at two deviations
  t = init.trunc_normal_(torch.empty { 200, 200 },
    { mean = 1, std = 2, a = 0, b = 5, generator = generator() })
  assert(t:min():item() >= 0 and t:max():item() <= 5)
  -- The mean of a normal cut at alpha and beta is mu + sigma (phi(alpha) - phi(beta)) / Z.
  local alpha, beta = -0.5, 2
  local function density(x) return math.exp(-x * x / 2) / math.sqrt(2 * math.pi) end
  local z = 0.9772499 - 0.3085375
  near("mean", t:mean():item(), 1 + 2 * (density(alpha) - density(beta)) / z, 0.03)
  local small = init.trunc_normal_(torch.empty { 100, 100 }, { std = 0.02,
    generator = generator() })
  expect_normal(small, 0, 0.02)
  assert(small:isfinite():all():item())
end)

test("xavier_uniform_ and xavier_normal_", function()
  local t = torch.empty { 80, 120 }
  local a = math.sqrt(6 / 200)
  expect_uniform(init.xavier_uniform_(t, { generator = generator() }), -a, a)
  expect_uniform(init.xavier_uniform_(t, { gain = 2, generator = generator() }), -2 * a, 2 * a)
  expect_normal(init.xavier_normal_(t, { generator = generator() }), 0, math.sqrt(2 / 200))
  expect_normal(init.xavier_normal_(t, { gain = 3, generator = generator() }), 0,
    3 * math.sqrt(2 / 200))
  -- A kernel's inputs count once for each of its places.
  t = torch.empty { 40, 20, 3, 5 }
  a = math.sqrt(6 / (20 * 15 + 40 * 15))
  expect_uniform(init.xavier_uniform_(t, { generator = generator() }), -a, a)
end)

test("kaiming_uniform_ and kaiming_normal_", function()
  local t = torch.empty { 80, 150 }
  local b = math.sqrt(2) * math.sqrt(3 / 150)  -- leaky_relu with a = 0
  expect_uniform(init.kaiming_uniform_(t, { generator = generator() }), -b, b)
  -- The uniform draw of torch.nn.Linear.
  b = 1 / math.sqrt(150)
  expect_uniform(init.kaiming_uniform_(t, { a = math.sqrt(5), generator = generator() }), -b, b)
  local gains = { linear = 1, sigmoid = 1, tanh = 5 / 3, relu = math.sqrt(2),
    leaky_relu = math.sqrt(2 / (1 + 0.3 ^ 2)), selu = 3 / 4 }
  for nonlinearity, gain in pairs(gains) do
    expect_normal(init.kaiming_normal_(t,
      { a = 0.3, nonlinearity = nonlinearity, generator = generator() }), 0, gain / math.sqrt(150))
  end
  expect_normal(init.kaiming_normal_(t, { mode = "fan_out", nonlinearity = "relu",
    generator = generator() }), 0, math.sqrt(2 / 80))
  expect_normal(init.kaiming_normal_(torch.empty { 30, 10, 4, 5 }, { generator = generator() }), 0,
    math.sqrt(2 / 200))
end)

test("orthogonal_: rows or columns of length gain, at right angles", function()
  for _, shape in ipairs { { 5, 5 }, { 4, 9 }, { 9, 4 }, { 6, 2, 5 }, { 12, 2, 3 } } do
    for _, gain in ipairs { 1, 1.7 } do
      local t = init.orthogonal_(torch.empty(shape), { gain = gain, generator = generator() })
      expect_equal(table.concat(t.shape, ","), table.concat(shape, ","))
      local flat = t:flatten(1)
      local small = flat:size(0) < flat:size(1) and flat or flat:t()
      expect_close(small:matmul(small:t()), torch.eye(small:size(0)) * gain ^ 2, 1e-4, 1e-5)
    end
  end
  -- Uniform over all orthogonal matrices: the signs of the diagonal are not all the same.
  local rng, positive = generator(), 0
  for _ = 1, 100 do
    local t = init.orthogonal_(torch.empty { 3, 3 }, { generator = rng })
    if t:diag():gt(0):all():item() then positive = positive + 1 end
  end
  assert(positive < 40, positive .. " of 100 have a positive diagonal")
end)

test("the same generator gives the same values, another one others", function()
  for name, options in pairs {
    uniform_ = {}, normal_ = {}, trunc_normal_ = {}, xavier_uniform_ = {}, xavier_normal_ = {},
    kaiming_uniform_ = {}, kaiming_normal_ = {}, orthogonal_ = {},
  } do
    local function draw(seed)
      options.generator = torch.Generator(seed)
      return init[name](torch.empty { 6, 7 }, options)
    end
    local first = draw(1)
    assert(torch.equal(first, draw(1)), name)
    assert(not torch.equal(first, draw(2)), name)
  end
end)

test("a tensor that requires gradients is filled without a history", function()
  local t = torch.empty({ 4, 4 }):requires_grad_()
  for _, name in ipairs { "zeros_", "normal_", "trunc_normal_", "kaiming_uniform_",
    "orthogonal_" } do
    init[name](t)
    assert(t.is_leaf and t.requires_grad, name)
  end
end)

test("other types: float64 and bfloat16", function()
  for _, name in ipairs { "normal_", "uniform_", "trunc_normal_", "xavier_normal_",
    "orthogonal_" } do
    for _, dtype in ipairs { "float64", "bfloat16" } do
      local t = init[name](torch.empty({ 6, 5 }, { dtype = dtype }), { generator = generator() })
      expect_equal(t.dtype, dtype)
      assert(t:isfinite():all():item(), name .. " " .. dtype)
    end
  end
end)

test("what is wrong is said by name", function()
  local vector, t = torch.empty { 5 }, torch.empty { 3, 4 }
  for _, name in ipairs { "xavier_uniform_", "xavier_normal_", "kaiming_uniform_",
    "kaiming_normal_",
    "orthogonal_" } do
    expect_error(function() init[name](vector) end, "init_spec.lua:", "nn.init." .. name, "[5]")
  end
  expect_error(function() init.kaiming_normal_(t, { mode = "fan_inn" }) end, "init_spec.lua:",
    "\"fan_in\"", "fan_inn")
  expect_error(function() init.kaiming_normal_(t, { nonlinearity = "gelu" }) end, "init_spec.lua:",
    "nonlinearity", "leaky_relu", "gelu")
  expect_error(function() init.normal_(t, { sdt = 1 }) end, "init_spec.lua:",
    "nn.init.normal_: unknown argument 'sdt'", "did you mean 'std'?")
  expect_error(function() init.xavier_normal_(t, { gian = 1 }) end, "unknown argument 'gian'",
    "did you mean 'gain'?")
  expect_error(function() init.uniform_(t, { a = 2, b = 1 }) end, "init_spec.lua:")
  expect_error(function() init.normal_(t, { std = -1 }) end, "init_spec.lua:")
  expect_error(function() init.trunc_normal_(t, { a = 3, b = 2 }) end, "init_spec.lua:")
  expect_error(function() init.normal_(5) end, "init_spec.lua:")
  expect_error(function() init.normal_(torch.empty({ 2 }, { dtype = "int64" })) end,
    "init_spec.lua:")
  expect_error(function() init.zeros_() end, "init_spec.lua:")
  expect_error(function() init.constant_(t) end, "init_spec.lua:")
  expect_error(function() init.orthogonal_(torch.empty { 0, 3 }) end, "init_spec.lua:")
end)

testing.finish()
