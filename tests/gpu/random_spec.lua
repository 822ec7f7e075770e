-- Random numbers of redco.Rng: the GPU's are the CPU's. Normal ones go through the inverse of their
-- distribution, which the CPU has in float32 and a GPU in float64: they differ by rounding.
local gpu = require "gpu"
local redco = require "redco"
local testing = require "testing"

local torch = redco.torch
local test, expect_near = testing.test, gpu.expect_near

-- Fills a new tensor by one of its methods, with the numbers that this takes.
local function filled(method, dtype, n, ...)
  local numbers = { ... }
  return function(device, rng)
    local t = torch.empty({ n }, { device = device, dtype = dtype })
    numbers[#numbers + 1] = { generator = rng }
    t[method](t, unpack(numbers))
    numbers[#numbers] = nil
    return t
  end
end

local draws = {
  { "uniform float32", 0, filled("uniform_", "float32", 37000, 0, 1) },
  { "uniform bfloat16", 0, filled("uniform_", "bfloat16", 999, 0, 1) },
  { "uniform float64", 1e-15, filled("uniform_", "float64", 999, 0, 1) },
  { "normal", 1e-5, filled("normal_", "float32", 1e5, 0, 1) },
  { "bernoulli", 0, filled("bernoulli_", "float32", 1e5, 0.3) },
  { "exponential", 1e-6, filled("exponential_", "float32", 1000, 1) },
  { "integers", 0, filled("random_", "int64", 1000, 0, 1000) },
  { "randperm", 0, function(device, rng)
    return torch.randperm(1000, { generator = rng, device = device })
  end },
  { "multinomial", 0, function(device, rng)
    local weights = torch.arange(1, 51, { device = device }):float()
    return torch.multinomial(weights, 20, { replacement = true, generator = rng })
  end },
  { "dropout, and attention's", 1e-5, function(device, rng)
    local x = torch.randn({ 4, 4, 32, 16 }, { generator = torch.Generator(2) }):to(device)
    return redco.with_rng(rng, function()
      local y = torch.dropout(x, 0.2, true)
      return torch.scaled_dot_product_attention(y, y, y, nil, 0.1, true)
    end)
  end },
}

for dtype, bound in pairs { float32 = 1e-5, bfloat16 = 2e-2, float16 = 5e-3 } do
  draws[#draws + 1] = { "nn.attention with dropout in " .. dtype, bound, function(device, rng)
    local x = torch.randn({ 2, 4, 64, 32 }, { generator = torch.Generator(2) }):to(dtype):to(device)
    x:requires_grad_()
    local y = redco.nn.attention(x, x, x, { causal = true, dropout = 0.2, train = true, rng = rng })
    y:backward(x:detach())
    return torch.cat { y:detach():reshape(-1), x.grad:reshape(-1) }
  end }
end

for _, dtype in ipairs { "float32", "bfloat16", "float16", "float64" } do
  for _, size in ipairs { { 4, 4, 64, 64 }, { 3, 5, 7 } } do
    draws[#draws + 1] = { ("nn.dropout, %d dimensions of %s"):format(#size, dtype), 0,
      function(device, rng)
        local x = torch.randn(size, { generator = torch.Generator(2) }):to(dtype):to(device)
        x:requires_grad_()
        local y = redco.nn.dropout(x, 0.2, { train = true, rng = rng })
        y:backward(x:detach())
        return torch.cat { y:detach():reshape(-1), x.grad:reshape(-1) }
      end }
  end
end

test("torch.Generator: the CPU's numbers, to the last bit", function()
  local function numbers(device)
    local generator = torch.Generator(3)
    local x = torch.empty({ 50, 40 }, { device = device })
    local view = x:narrow(1, 3, 20):uniform_(-1, 1, { generator = generator })
    assert(view.device == x.device)
    local y = torch.randn({ 100 }, { generator = generator, device = device })
    local weights = torch.arange(1, 51, { device = device }):float()
    local z = torch.multinomial(weights, 7, { generator = generator })
    return torch.cat { view:reshape(-1), y, z:float() }:cpu()
  end
  assert(numbers(gpu.device) == numbers "cpu")
end)

for _, draw in ipairs(draws) do
  local name, bound, f = unpack(draw)
  test(name, function()
    expect_near(name, f(gpu.device, redco.Rng(11)), f("cpu", redco.Rng(11)), bound)
  end)
end

testing.finish()
