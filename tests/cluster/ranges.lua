-- Reductions over a dimension that processes split have the range and the rounding that they have
-- in one process: in 16-bit floats, and with NaN and infinities anywhere.
local redco = require "redco"
local testing = require "testing"

local torch = redco.torch
local deployer = redco.Deployer { seed = 1, n_model_shards = 2, verbose = false }
assert(deployer.mesh.mp == 2)
local generator = torch.Generator(7)
local inf, nan = math.huge, 0 / 0

--- Split along the first dimension, by every dimension of the mesh.
local function split(tensor) return redco.shard(tensor, { dp = 0, mp = 0 }) end

local function describe(tensor)
  return table.concat(torch.cat({ tensor:double():reshape { -1 } }):tolist(), ", ")
end

local reductions = {
  sum = function(x) return x:sum() end,
  ["sum of rows"] = function(x) return x:sum(0) end,
  mean = function(x) return x:mean() end,
  ["mean of rows"] = function(x) return x:mean(0) end,
  nansum = function(x) return x:nansum(0) end,
  var = function(x) return x:var() end,
  ["std of rows"] = function(x) return x:std(0) end,
  norm = function(x) return x:norm() end,
  ["norm 3"] = function(x) return torch.linalg.vector_norm(x, 3) end,
  ["norm inf"] = function(x) return torch.linalg.vector_norm(x, inf) end,
  ["norm -inf"] = function(x) return torch.linalg.vector_norm(x, -inf) end,
  foreach_norm = function(x) return torch.stack(torch._foreach_norm({ x, x * 0.5 }, 2)) end,
  foreach_max = function(x) return torch.stack(torch._foreach_max { x, x * 0.5 }) end,
  logsumexp = function(x) return x:logsumexp { 0 } end,
  prod = function(x) return (x * 0.01 + 1):prod(0) end,
  softmax = function(x) return x:softmax(0) end,
  log_softmax = function(x) return x:log_softmax(0) end,
  amax = function(x) return x:amax() end,
  amin = function(x) return x:amin { 0 } end,
  aminmax = function(x) return torch.stack { x:aminmax() } end,
  max = function(x) return x:max() end,
  min = function(x) return x:min() end,
  argmax = function(x) return x:argmax():float() end,
  ["max of rows"] = function(x) return (x:max(0)) end,
  median = function(x) return x:median() end,
  topk = function(x) return (x:topk(2, 0)) end,
  cummax = function(x) return (x:cummax(0)) end,
  dot = function(x) return torch.dot(x:reshape { -1 }, x:reshape { -1 } * 1e-4) end,
  ["dot with ones"] = function(x)
    local flat = x:reshape { -1 }
    return torch.dot(flat, torch.ones_like(flat))
  end,
  cumsum = function(x) return x:cumsum(0):narrow(0, -1, 1) end,
  batch_norm = function(x)
    return torch.batch_norm(x, nil, nil, nil, nil, true, 0.1, 1e-5, false):amax { 0 }
  end,
  mse_loss = function(x) return torch.mse_loss(x, x * 0.5) end,
  smooth_l1_loss = function(x) return torch.smooth_l1_loss(x, x * 0.5) end,
  huber_loss = function(x) return torch.huber_loss(x, x * 0.5) end,
  bce_loss = function(x) return torch.binary_cross_entropy_with_logits(x, x * 0.01) end,
  cross_entropy = function(x)
    return torch.cross_entropy_loss(x, torch.zeros({ x:size(0) }, { dtype = "int64" }))
  end,
  ["mse_loss summed"] = function(x) return torch.mse_loss(x * 0.01, x * 0.02, 2) end,
  ["gradient of mse_loss"] = function(x)
    local leaf = x:detach():requires_grad_()
    torch.mse_loss(leaf, x * 0.5):backward()
    return leaf.grad:float():norm()
  end,
}

local names = {}
for name in pairs(reductions) do names[#names + 1] = name end
table.sort(names)

--- Fails unless every reduction of the parts is as near to the exact values as that of the whole.
local function expect_as_one(x, dtype, only)
  local failures = {}
  for _, name in ipairs(names) do
    local f = reductions[name]
    local whole = x:to(dtype)
    local ok, expected = pcall(f, whole)
    local done, actual = pcall(f, split(whole))
    if ok and not done then
      failures[#failures + 1] = name .. ": " .. tostring(actual)
    elseif ok and (not only or only[name]) then
      actual = actual:full()
      local exact = f(whole:double()):double()
      local off = (expected:double() - exact):abs() * 2
      local slack = dtype == "bfloat16" and 4e-3 or dtype == "float16" and 5e-4 or 1e-6
      local allowed = off + exact:abs() * slack + 1e-6
      local values, wanted = actual:double(), expected:double()
      local near = (values - exact):abs():le(allowed)
      local same = values:eq(wanted):logical_or(values:isnan():logical_and(wanted:isnan()))
      -- Infinite in one process, where it overflows itself: finite parts are no worse.
      local overflown = wanted:isfinite():logical_not():logical_and(exact:isfinite())
      if not near:logical_or(same):logical_or(overflown):all():item() then
        failures[#failures + 1] = ("%s: on parts %s, in one process %s, exactly %s"):format(name,
          describe(values), describe(wanted), describe(exact))
      end
    end
  end
  if #failures > 0 then error(dtype .. "\n" .. table.concat(failures, "\n"), 0) end
end

local dtypes = { "float16", "bfloat16", "float32", "float64" }

for _, dtype in ipairs(dtypes) do
  testing.test("large sums: " .. dtype, function()
    expect_as_one(torch.randn({ 3001, 3 }, { generator = generator }) + 60, dtype)
  end)
  testing.test("around zero: " .. dtype, function()
    expect_as_one(torch.randn({ 2000, 3 }, { generator = generator }), dtype)
  end)
  -- The terms of the processes are beyond what float16 holds, their sum is not.
  testing.test("terms that cancel: " .. dtype, function()
    local x = torch.full({ 2048, 2 }, 50)
    x:narrow(0, 1024, 1024):mul_(-0.9)
    expect_as_one(x, dtype)
  end)
end

for _, special in ipairs { nan, inf, -inf } do
  for _, dtype in ipairs(dtypes) do
    testing.test(("%s in %s"):format(special, dtype), function()
      for _, place in ipairs { 0, 3, 5 } do
        local x = torch.tensor { 1.5, 2.5, 3.5, 0.5, -1.5, 2.25 }
        x[place] = special
        expect_as_one(x:reshape { 6, 1 }, dtype)
      end
    end)
  end
end

testing.test("a sum to come is made before its values are looked at", function()
  local terms = torch.tensor { { 1, -1, 0, 0.6 }, { -1, 1, 0, 0.6 } }
  local whole, sum = terms:sum(0), redco.shard(terms, { mp = 0 }):sum(0)
  testing.expect_equal(sum:placement().mp, "partial(sum)")
  testing.expect_equal(sum:count_nonzero():item(), whole:count_nonzero():item())
  testing.expect_equal(sum:to("int32"):full(), whole:to "int32")
  local integers = torch.zeros({ 4 }, { dtype = "int32" })
  testing.expect_equal(redco.shard(integers, {}):copy_(sum):full(), whole:to "int32")
  terms[{ 0, 2 }] = nan
  whole, sum = terms:sum(0), redco.shard(terms, { mp = 0 }):sum(0)
  testing.expect_equal(sum:nansum():item(), whole:nansum():item())
end)

testing.test("a gradient's sum to come stays one in a wider type", function()
  local terms = torch.tensor { { 1, 2 }, { 100, -99.5 }, { 3, 4 } }
  local whole = terms:sum(1):unsqueeze(0)
  for _, dtype in ipairs { "float16", "bfloat16" } do
    for _, dim in ipairs(deployer.mesh.dp > 1 and { "dp", "mp" } or { "mp" }) do
      local sum = torch.linear(redco.shard(torch.ones({ 1, 2 }, { dtype = dtype }), { [dim] = 1 }),
        redco.shard(terms:to(dtype), { [dim] = 1 }))
      testing.expect_equal(sum:placement()[dim], "partial(sum)")
      local wide = sum:to "float32"
      testing.expect_equal(wide:placement()[dim], dim == "dp" and "partial(sum)" or "replicate")
      testing.expect_close(wide:full(), whole)
      local narrow = wide:to(dtype)
      testing.expect_equal(narrow:placement()[dim], "replicate")
      testing.expect_close(narrow:full(), whole:to(dtype))
    end
  end
end)

-- A term times the factor is beyond what float16 holds, the sum's value is not.
testing.test("what is computed with a sum to come of float16 does not overflow", function()
  local terms = torch.full({ 3, 2 }, 60)
  terms:narrow(1, 1, 1):fill_(-59)
  local sum = torch.linear(redco.shard(torch.ones({ 3, 2 }, { dtype = "float16" }), { mp = 1 }),
    redco.shard(terms:to "float16", { mp = 1 }))
  testing.expect_equal(sum:placement().mp, "partial(sum)")
  for _, f in ipairs {
    function(x) return x * 2000 end,
    function(x) return x / 0.0005 end,
    function(x) return torch.matmul(x, torch.full({ 3, 1 }, 500, { dtype = "float16" })) end,
    function(x) return (x * 2000):cumsum(0) end,
    function(x) return torch.stack(torch._foreach_mul({ x, x }, 2000)) end,
  } do
    testing.expect_close(f(sum):full(), f(sum:full()))
  end
end)

testing.finish()
