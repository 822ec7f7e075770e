-- redco.nn against torch.nn: outputs, gradients, shapes and first values of parameters.
local redco = require "redco"
local testing = require "testing"

local torch, nn, tree = redco.torch, redco.nn, redco.tree
local test, expect_error = testing.test, testing.expect_error
local expect_close, expect_equal = testing.expect_close, testing.expect_equal

-- Made by tests/tools/make_nn_cases.py, which says what the names mean.
local stored = torch.load "nn_cases.safetensors"

--- The stored tensors whose names start with `prefix`, by the rest of their names.
local function part(prefix)
  local found = {}
  for name, tensor in pairs(stored) do
    if name:sub(1, #prefix) == prefix then found[name:sub(#prefix + 1)] = tensor end
  end
  return found
end

--- The tree of a flat table with dotted names, lists where the names are numbers.
local function nested(flat)
  local root = {}
  for name, tensor in pairs(flat) do
    local node, last = root, nil
    for key in name:gmatch "[^.]+" do
      if last then
        node[last] = node[last] or {}
        node = node[last]
      end
      last = tonumber(key) or key
    end
    node[last] = tensor
  end
  return root
end

local used = {}

--- Fails unless `forward(params, inputs)`, a table of outputs, gives the stored outputs and the
--- stored gradients for all inputs and parameters.
local function check_case(name, forward)
  used[name] = true
  local inputs, params = part(name .. ".in."), part(name .. ".p.")
  assert(next(inputs), "no stored case " .. name)
  for _, set in ipairs { inputs, params } do
    for key, tensor in pairs(set) do
      if tensor.dtype:find "float" then set[key] = tensor:clone():requires_grad_() end
    end
  end
  local outputs, total = forward(nested(params), inputs), nil
  for key, expected in pairs(part(name .. ".out.")) do
    local y = assert(outputs[key], name .. " gave no " .. key)
    expect_equal(y.dtype, expected.dtype)
    expect_close(y, expected, 1e-5, 2e-6)
    local term = (y:float() * stored[name .. ".r." .. key]):sum()
    total = total and total + term or term
  end
  total:backward()
  for key, expected in pairs(part(name .. ".g.")) do
    local set, rest = key:match "^(%w+)%.(.*)$"
    local leaf = (set == "in" and inputs or params)[rest]
    assert(leaf.grad, ("%s: no gradient for %s"):format(name, rest))
    local tolerance = leaf.dtype == "bfloat16" and 1e-2 or 2e-5
    expect_close(leaf.grad, expected, tolerance, tolerance / 2)
  end
end

local function layer_test(name, apply)
  test(name .. " equals torch.nn", function()
    check_case(name, function(p, i) return { y = apply(p, i) } end)
  end)
end

-- ---- layers ----

layer_test("linear", function(p, i) return nn.linear(p, i.x) end)
layer_test("linear_without_bias", function(p, i) return nn.linear(p, i.x) end)
layer_test("embedding", function(p, i) return nn.embedding(p, i.ids) end)
layer_test("layer_norm", function(p, i) return nn.layer_norm(p, i.x) end)
layer_test("layer_norm_2d_eps", function(p, i) return nn.layer_norm(p, i.x, { eps = 0.1 }) end)
layer_test("layer_norm_without_bias", function(p, i) return nn.layer_norm(p, i.x) end)
layer_test("rms_norm", function(p, i) return nn.rms_norm(p, i.x) end)
layer_test("rms_norm_eps", function(p, i) return nn.rms_norm(p, i.x, { eps = 0.5 }) end)
layer_test("conv1d", function(p, i) return nn.conv1d(p, i.x, { stride = 2, padding = 1 }) end)
layer_test("conv1d_grouped", function(p, i)
  return nn.conv1d(p, i.x, { dilation = 3, groups = 2 })
end)
layer_test("conv1d_same", function(p, i)
  return nn.conv1d(p, i.x, { padding = "same", dilation = 2 })
end)
layer_test("conv2d", function(p, i)
  return nn.conv2d(p, i.x, { stride = { 2, 1 }, padding = { 1, 0 } })
end)
layer_test("conv2d_grouped", function(p, i)
  return nn.conv2d(p, i.x, { groups = 4, dilation = 2, padding = 2 })
end)
layer_test("gru_cell", function(p, i) return nn.gru_cell(p, i.x, i.h) end)
layer_test("gru_cell_without_bias", function(p, i) return nn.gru_cell(p, i.x, i.h) end)
for _, name in ipairs { "lstm_cell", "lstm_cell_without_bias" } do
  test(name .. " equals torch.nn", function()
    check_case(name, function(p, i)
      local h, c = nn.lstm_cell(p, i.x, i.h, i.c)
      return { y1 = h, y2 = c }
    end)
  end)
end
layer_test("mlp_relu", function(p, i) return nn.mlp(p, i.x) end)
layer_test("mlp_tanh", function(p, i) return nn.mlp(p, i.x, { activation = torch.tanh }) end)

-- ---- attention ----

local attention_options = {
  plain = {}, cross = {}, causal = { causal = true }, bool_mask = {}, float_mask = {},
  scale = { scale = 0.9 }, gqa = { enable_gqa = true },
  gqa_causal = { enable_gqa = true, causal = true },
}
for name, options in pairs(attention_options) do
  test(("attention, %s, equals torch"):format(name), function()
    check_case("attention_" .. name, function(_, i)
      options.mask = i.mask
      return { y = nn.attention(i.q, i.k, i.v, options) }
    end)
  end)
  -- The path with dropout is another; at a rate near nothing it must give the same.
  test(("attention, %s, with a dropout of hardly anything is the same"):format(name), function()
    local i = part("attention_" .. name .. ".in.")
    local o = { train = true, dropout = 1e-7, rng = torch.Generator(1), mask = i.mask }
    for key, value in pairs(options) do
      if key ~= "mask" then o[key] = value end
    end
    expect_close(nn.attention(i.q, i.k, i.v, o), stored["attention_" .. name .. ".out.y"], 1e-5, 2e-6)
  end)
end

test("attention: a dropout of 0.0001 changes at most what it drops", function()
  local i = part "attention_plain.in."
  local y = nn.attention(i.q, i.k, i.v,
    { train = true, dropout = 0.0001, rng = torch.Generator(3) })
  expect_close(y, stored["attention_plain.out.y"], 1e-3, 1e-3)
end)

test("attention drops probabilities at the rate, keeps their mean, and draws from rng", function()
  -- v = 1 everywhere and one query: the output is the sum of the kept probabilities.
  local n = 4096
  local q, k = torch.zeros { 8, 1, n, 4 }, torch.zeros { 8, 1, 16, 4 }
  local v = torch.ones { 8, 1, 16, 4 }
  local function run(seed)
    return nn.attention(q, k, v, { train = true, dropout = 0.25, rng = torch.Generator(seed) })
  end
  local y = run(5)
  assert(math.abs(y:mean():item() - 1) < 0.005, "the mean is " .. y:mean():item())
  -- Each of 16 probabilities of 1/16 is kept with 3/4: the variance is p / (1 - p) / 16.
  local std = y:select(-1, 0):std():item()
  assert(math.abs(std - math.sqrt(0.25 / 0.75 / 16)) < 0.005, "the deviation is " .. std)
  assert(torch.equal(y, run(5)), "the same generator, another result")
  assert(not torch.equal(y, run(6)), "another generator, the same result")
  local still = nn.attention(q, k, v, { dropout = 0.25, rng = torch.Generator(5) })
  expect_close(still, torch.ones_like(still))
  expect_error(function() nn.attention(q, k, v, { train = true, dropout = 0.5 }) end, "rng")
end)

test("attention takes a mask and causal together only where that has a meaning", function()
  local i = part "attention_float_mask.in."
  local o = { mask = i.mask, causal = true }
  -- LibTorch refuses both; with dropout both hold.
  local ok, y = pcall(nn.attention, i.q, i.k, i.v, o)
  local triangle = torch.ones({ 5, 5 }, { dtype = "bool" }):tril():logical_not()
  local expected = nn.attention(i.q, i.k, i.v, { mask = i.mask:masked_fill(triangle, -math.huge) })
  if ok then expect_close(y, expected, 1e-5, 1e-6) end
  o.train, o.dropout, o.rng = true, 1e-7, torch.Generator(1)
  local ok_too, with_dropout = pcall(nn.attention, i.q, i.k, i.v, o)
  expect_equal(ok_too, ok)
  if ok_too then expect_close(with_dropout, expected, 1e-5, 1e-6) end
end)

layer_test("multihead_self", function(p, i)
  return nn.multihead_attention(p, i.x, { num_heads = 2 })
end)
layer_test("multihead_memory", function(p, i)
  return nn.multihead_attention(p, i.x, { num_heads = 3, memory = i.memory })
end)
layer_test("multihead_causal", function(p, i)
  return nn.multihead_attention(p, i.x, { num_heads = 2, causal = true })
end)

test("multihead_attention: a mask like causal, and what is wrong", function()
  local i, p = part "multihead_causal.in.", nested(part "multihead_causal.p.")
  local mask = torch.ones({ 5, 5 }, { dtype = "bool" }):tril()
  expect_close(nn.multihead_attention(p, i.x, { num_heads = 2, mask = mask }),
    stored["multihead_causal.out.y"], 1e-5, 2e-6)
  expect_error(function() nn.multihead_attention(p, i.x) end, "num_heads", "nn_spec.lua:")
  expect_error(function() nn.multihead_attention(p, i.x, { num_heads = 4 }) end, "nn_spec.lua:",
    "4", "6")
  expect_error(function() nn.multihead_attention(p, i.x, { n_heads = 2 }) end,
    "nn.multihead_attention: unknown argument 'n_heads'", "did you mean 'num_heads'?")
end)

-- ---- dropout ----

test("dropout: the rate, the scale, the mean, the gradient and the generator", function()
  local x = torch.full({ 200, 500 }, 3):requires_grad_()
  local y = nn.dropout(x, 0.3, { train = true, rng = torch.Generator(1) })
  local kept = y:ne(0)
  local rate = kept:float():mean():item()
  assert(math.abs(rate - 0.7) < 0.006, "kept " .. rate)
  expect_close(y:detach(), kept:float() * (3 / 0.7), 1e-5)
  y:sum():backward()
  expect_close(x.grad, kept:float() / 0.7, 1e-5)
  local again = nn.dropout(x, 0.3, { train = true, rng = torch.Generator(1) })
  assert(torch.equal(y, again))
  assert(not torch.equal(y, nn.dropout(x, 0.3, { train = true, rng = torch.Generator(2) })))
  assert(rawequal(nn.dropout(x, 0.3), x) and rawequal(nn.dropout(x, 0.3, { train = false }), x))
  assert(rawequal(nn.dropout(x, 0, { train = true }), x))
  expect_error(function() nn.dropout(x, 0.3, { train = true }) end, "nn_spec.lua:", "rng")
  expect_error(function() nn.dropout(x, 0.3, { training = true }) end, "unknown argument 'training'",
    "'train'")
end)

test("dropout of all is zeros, with finite gradients; a rate that is none is an error", function()
  local x = torch.ones({ 20 }):requires_grad_()
  local y = nn.dropout(x, 1, { train = true, rng = torch.Generator(1) })
  expect_close(y:detach(), torch.zeros { 20 })
  y:sum():backward()
  expect_close(x.grad, torch.zeros { 20 })
  for _, p in ipairs { -0.1, 1.5 } do
    expect_error(function() nn.dropout(x, p, { train = true, rng = torch.Generator(1) }) end,
      "nn_spec.lua:")
  end
end)

testing.finish()
