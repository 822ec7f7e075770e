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
    expect_close(nn.attention(i.q, i.k, i.v, o), stored["attention_" .. name .. ".out.y"], 1e-5,
      2e-6)
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
  expect_error(function() nn.attention(q, torch.ones { 4 }, v) end,
    "nn.attention: k: expected a tensor [..., heads, length, size], got Tensor float32[4]")
  expect_error(function() nn.attention(nil, k, v) end, "nn.attention: q: expected", "got nil")
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
  expect_error(function() nn.multihead_attention(p, i.x[0], { num_heads = 2 }) end,
    "x: expected a tensor [batch, length, embed_dim], got Tensor float32[5, 6]")
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
  expect_error(function() nn.dropout(x, 0.3, { training = true }) end,
    "unknown argument 'training'",
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

test("attention: a query that may look at nothing gets 0, with dropout too", function()
  local i = part "attention_plain.in."
  local mask = torch.ones({ 5, 5 }, { dtype = "bool" })
  mask[2] = false
  for _, options in ipairs { {}, { train = true, dropout = 1e-7, rng = torch.Generator(1) } } do
    options.mask = mask
    local q = i.q:clone():requires_grad_()
    local y = nn.attention(q, i.k, i.v, options)
    expect_close(y:detach():select(-2, 2), torch.zeros { 2, 4, 3 })
    y:sum():backward()
    assert(q.grad:isfinite():all():item(), "the gradient is not finite")
  end
end)

-- ---- losses ----

local loss_options = {
  plain = {}, ignored = {}, ignore_index = { ignore_index = 3 },
    smoothing = { label_smoothing = 0.2 },
  smoothing_ignored = { label_smoothing = 0.1 }, bfloat16 = {}, rows = {},
}
for name, options in pairs(loss_options) do
  test(("cross_entropy, %s, equals torch"):format(name), function()
    check_case("cross_entropy_" .. name, function(_, i)
      local loss, count = nn.cross_entropy(i.logits, i.labels, options)
      local ignored = i.labels:eq(options.ignore_index or -100):sum():item()
      expect_equal(count:item(), i.labels:numel() - ignored)
      expect_equal(count.dtype, "int64")
      expect_equal(#loss.shape, 0)
      return { loss = loss }
    end)
  end)
end

test("cross_entropy with class weights: equals torch, and micro-batches are exact", function()
  local generator = torch.Generator(3)
  local logits = torch.randn({ 7, 4 }, { generator = generator })
  local labels = torch.tensor { 3, 0, -100, 1, 1, 2, 0 }
  local weight = torch.tensor { 0.1, 2, 0.5, 3 }
  local loss, sum = nn.cross_entropy(logits, labels, { weight = weight })
  expect_close(loss, torch.cross_entropy_loss(logits, labels, weight))
  expect_close(sum, torch.tensor(3 + 0.1 + 2 + 2 + 0.5 + 0.1))
  expect_close(nn.cross_entropy(logits, labels, { weight = weight, label_smoothing = 0.2 }),
    torch.cross_entropy_loss(logits, labels, weight, { label_smoothing = 0.2 }))
  local total, weights = 0, 0
  for _, rows in ipairs { { 0, 3 }, { 3, 4 } } do
    local l, n = nn.cross_entropy(logits:narrow(0, unpack(rows)), labels:narrow(0, unpack(rows)),
      { weight = weight })
    total, weights = total + l * n, weights + n
  end
  expect_close(total / weights, loss)
  loss = nn.cross_entropy(logits:requires_grad_(), torch.full({ 7 }, -100):long(),
    { weight = weight })
  loss:backward()
  expect_equal(loss:item(), 0)
  expect_equal(logits.grad:abs():sum():item(), 0)
end)

test("cross_entropy and linear_cross_entropy: no label that counts gives 0 and gradients of 0",
  function()
    local logits = torch.randn({ 2, 3, 5 }):requires_grad_()
    local labels = torch.full({ 2, 3 }, -100, { dtype = "int64" })
    local loss, count = nn.cross_entropy(logits, labels)
    expect_equal(loss:item(), 0)
    expect_equal(count:item(), 0)
    loss:backward()
    expect_close(logits.grad, torch.zeros { 2, 3, 5 })

    local x, weight = torch.randn({ 2, 3, 4 }):requires_grad_(), torch.randn({ 5,
      4 }):requires_grad_()
    loss, count = nn.linear_cross_entropy(x, weight, labels)
    expect_equal(loss:item(), 0)
    expect_equal(count:item(), 0)
    loss:backward()
    expect_close(x.grad, torch.zeros { 2, 3, 4 })
    expect_close(weight.grad, torch.zeros { 5, 4 })
  end)

test("wrong labels and options of the losses are errors of the line that called", function()
  local logits, labels = torch.randn { 2, 5 }, torch.tensor { 1, 5 }
  local x, weight = torch.randn { 2, 4 }, torch.randn { 5, 4 }
  for _, call in ipairs {
    function(l, o) return nn.cross_entropy(logits, l, o) end,
    function(l, o) return nn.linear_cross_entropy(x, weight, l, o) end,
  } do
    expect_error(function() call(labels) end, "nn_spec.lua:", "5")
    expect_error(function() call(torch.tensor { 1, -1 }) end, "nn_spec.lua:", "-1")
    expect_error(function() call(torch.tensor { 1, 2, 3 }) end, "nn_spec.lua:")
    expect_error(function() call(torch.tensor { 1, 2 }, { label_smothing = 0.1 }) end,
      "unknown argument 'label_smothing'", "did you mean 'label_smoothing'?")
    expect_error(function() call(torch.tensor { 1, 2 }, { label_smoothing = 1.5 }) end,
      "nn_spec.lua:", "1.5")
    expect_error(function() call(torch.tensor { 1.0, 2.5 }) end, "nn_spec.lua:")
  end
  expect_error(function() nn.linear_cross_entropy(x, torch.randn { 5, 3 }, torch.tensor { 1,
    2 }) end,
    "nn_spec.lua:")
  expect_error(function()
    nn.linear_cross_entropy(x, weight, torch.tensor { 1, 2 }, { bias = torch.ones { 4 } })
  end, "nn_spec.lua:", "bias", "[4]")
end)

--- Fails unless linear_cross_entropy and cross_entropy of the full logits agree in value, first
--- and, with `twice`, second gradients, without and with a bias.
local function compare_heads(dtype, sizes, options, tolerance, twice)
  local rng = torch.Generator(11)
  local function draw(...) return torch.randn({ ... }, { generator = rng }) end
  local shapes = { { sizes.rows, sizes.inner }, { sizes.classes, sizes.inner }, { sizes.classes } }
  local first, probes = {}, {}
  for i, shape in ipairs(shapes) do
    first[i], probes[i] = (draw(unpack(shape)) * 0.5):to(dtype), draw(unpack(shape))
  end
  local labels = draw(sizes.rows):abs():mul(1e6):long():remainder(sizes.classes)
  labels[0] = options.ignore_index or -100
  local function fused(x, weight, bias)
    local o = { bias = bias }
    for key, value in pairs(options) do o[key] = value end
    return nn.linear_cross_entropy(x, weight, labels, o)
  end
  local function plain(x, weight, bias)
    return nn.cross_entropy(torch.linear(x, weight, bias), labels, options)
  end
  local function results_of(head, n_inputs)
    local inputs, results = {}, {}
    for i = 1, n_inputs do inputs[i] = first[i]:clone():requires_grad_() end
    local loss, count = head(unpack(inputs))
    results.loss, results.count = loss:detach(), count
    local gradients = torch.autograd.grad(loss, inputs, { create_graph = twice or false })
    local probed = 0
    for i, gradient in ipairs(gradients) do
      results["gradient " .. i] = gradient:detach()
      probed = probed + (gradient * probes[i]):sum()
    end
    for i, gradient in ipairs(twice and torch.autograd.grad(probed, inputs) or {}) do
      results["second gradient " .. i] = gradient
    end
    return results
  end
  for n_inputs = 2, 3 do
    local actual = results_of(fused, n_inputs)
    for key, expected in pairs(results_of(plain, n_inputs)) do
      expect_equal(actual[key].dtype, expected.dtype)
      local largest = expected:double():abs():max():item()
      expect_close(actual[key], expected, tolerance, tolerance * largest)
    end
  end
end

test("linear_cross_entropy equals cross_entropy of all logits, to the second gradients", function()
  local sizes = { rows = 12, inner = 6, classes = 9 }
  compare_heads("float32", sizes, {}, 2e-5, true)
  compare_heads("float64", sizes, {}, 1e-11, true)
  compare_heads("float32", sizes, { label_smoothing = 0.2 }, 2e-5, true)
  compare_heads("float64", sizes, { ignore_index = 4, label_smoothing = 0.1 }, 1e-11, true)
end)

test("linear_cross_entropy over several blocks of rows", function()
  -- A block has 2^21 logits: 419 rows of 5000 classes.
  local sizes = { rows = 1000, inner = 8, classes = 5000 }
  compare_heads("float32", sizes, {}, 2e-5)
  compare_heads("float32", sizes, { label_smoothing = 0.1 }, 2e-5)
  compare_heads("float64", { rows = 850, inner = 4, classes = 5000 }, {}, 1e-11, true)
end)

test("linear_cross_entropy in bfloat16 is near the full logits", function()
  compare_heads("bfloat16", { rows = 64, inner = 16, classes = 50 }, {}, 2e-2)
  compare_heads("bfloat16", { rows = 1000, inner = 8, classes = 5000 }, {}, 2e-2)
end)

test("linear_cross_entropy where only one side is trained, and where none is", function()
  local x, weight = torch.randn { 6, 4 }, torch.randn { 5, 4 }
  local labels = torch.tensor { 0, 1, 2, 3, 4, 0 }
  local expected = nn.cross_entropy(torch.linear(x, weight), labels)
  local loss = nn.linear_cross_entropy(x, weight, labels)
  assert(not loss.requires_grad)
  expect_close(loss, expected)
  local trained = weight:clone():requires_grad_()
  local gradient = torch.autograd.grad(nn.linear_cross_entropy(x, trained, labels), { trained })[1]
  local full = torch.autograd.grad(nn.cross_entropy(torch.linear(x, trained), labels),
    { trained })[1]
  expect_close(gradient, full, 1e-5, 1e-6)
  trained = x:clone():requires_grad_()
  gradient = torch.autograd.grad(nn.linear_cross_entropy(trained, weight, labels), { trained })[1]
  full = torch.autograd.grad(nn.cross_entropy(torch.linear(trained, weight), labels),
    { trained })[1]
  expect_close(gradient, full, 1e-5, 1e-6)
end)

-- ---- parameters ----

local makers = {
  Linear = { call = function(o) return nn.Linear(50, 40, o) end,
    shapes = { weight = "40,50", bias = "40" }, bound = 1 / math.sqrt(50) },
  Embedding = { call = function(o) return nn.Embedding(70, 30, o) end,
    shapes = { weight = "70,30" }, std = 1 },
  Conv1d = { call = function(o) return nn.Conv1d(24, 32, 5, o) end,
    shapes = { weight = "32,24,5", bias = "32" }, bound = 1 / math.sqrt(24 * 5) },
  Conv2d = { call = function(o) return nn.Conv2d(8, 32, { 3, 5 }, o) end,
    shapes = { weight = "32,8,3,5", bias = "32" }, bound = 1 / math.sqrt(8 * 15) },
  GRUCell = { call = function(o) return nn.GRUCell(20, 25, o) end,
    shapes = { weight_ih = "75,20", weight_hh = "75,25", bias_ih = "75", bias_hh = "75" },
    bound = 1 / math.sqrt(25) },
  LSTMCell = { call = function(o) return nn.LSTMCell(20, 25, o) end,
    shapes = { weight_ih = "100,20", weight_hh = "100,25", bias_ih = "100", bias_hh = "100" },
    bound = 1 / math.sqrt(25) },
  MultiheadAttention = { call = function(o) return nn.MultiheadAttention(32, o) end,
    shapes = { ["q_proj.weight"] = "32,32", ["q_proj.bias"] = "32", ["k_proj.weight"] = "32,32",
      ["k_proj.bias"] = "32", ["v_proj.weight"] = "32,32", ["v_proj.bias"] = "32",
      ["out_proj.weight"] = "32,32", ["out_proj.bias"] = "32" }, bound = 1 / math.sqrt(32) },
  MLP = { call = function(o) return nn.MLP({ 36, 36, 36 }, o) end,
    shapes = { ["1.weight"] = "36,36", ["1.bias"] = "36", ["2.weight"] = "36,36",
      ["2.bias"] = "36" }, bound = 1 / math.sqrt(36) },
}

local function by_path(params)
  local found, leaves = {}, tree.leaves(params)
  for i, path in ipairs(tree.paths(params)) do found[path] = leaves[i] end
  return found
end

for name, maker in pairs(makers) do
  test(name .. " makes parameters of the shapes and the distribution it says", function()
    local params = by_path(maker.call { generator = torch.Generator(7) })
    for path, shape in pairs(maker.shapes) do
      assert(params[path], name .. " has no " .. path)
      expect_equal(table.concat(params[path].shape, ","), shape)
      expect_equal(params[path].dtype, "float32")
    end
    for path, tensor in pairs(params) do
      assert(maker.shapes[path], ("%s makes %s, which was not expected"):format(name, path))
      if maker.bound then
        local largest = tensor:abs():max():item()
        assert(largest <= maker.bound, path .. " is out of bounds")
        if tensor:numel() > 500 then
          assert(largest > 0.95 * maker.bound, path .. " does not reach its bounds")
        end
      end
      if tensor:numel() > 500 then
        local std = maker.std or maker.bound / math.sqrt(3)
        local off = math.abs(tensor:std():item() / std - 1)
        assert(off < 0.1, ("%s: the deviation is off by %g"):format(path, off))
        assert(math.abs(tensor:mean():item()) < 0.15 * std, path .. " has a mean")
      end
    end
  end)

  test(name .. ": the same generator gives the same parameters", function()
    local a = by_path(maker.call { generator = torch.Generator(7) })
    local b = by_path(maker.call { generator = torch.Generator(7) })
    local c = by_path(maker.call { generator = torch.Generator(8) })
    for path in pairs(a) do
      assert(torch.equal(a[path], b[path]), path .. " differs")
      assert(not torch.equal(a[path], c[path]), path .. " does not depend on the seed")
    end
    torch.manual_seed(3)
    a = by_path(maker.call())
    torch.manual_seed(3)
    b = by_path(maker.call())
    for path in pairs(a) do assert(torch.equal(a[path], b[path]), path .. " differs") end
  end)

  test(name .. " refuses an unknown option with the nearest", function()
    expect_error(function() maker.call { generatr = torch.Generator(1) } end, "nn_spec.lua:",
      ("nn.%s: unknown argument 'generatr'; did you mean 'generator'?"):format(name))
    expect_error(function() maker.call(5) end,
      "nn_spec.lua:", "expected a table of named arguments (")
  end)
end

test("parameters without bias, grouped kernels, layers of 1 and 0", function()
  for _, params in ipairs {
    nn.Linear(3, 2, { bias = false }), nn.Conv1d(4, 2, 3, { bias = false }),
    nn.Conv2d(4, 2, 3, { bias = false }), nn.LayerNorm(3, { bias = false }), nn.RMSNorm(3),
  } do
    expect_equal(params.bias, nil)
    assert(params.weight)
  end
  for _, params in ipairs { nn.GRUCell(3, 2, { bias = false }), nn.LSTMCell(3, 2,
    { bias = false }) } do
    expect_equal(params.bias_ih or params.bias_hh, nil)
  end
  expect_equal(#tree.leaves(nn.MLP({ 2, 3, 4 }, { bias = false })), 2)
  expect_equal(#tree.leaves(nn.MultiheadAttention(4, { bias = false })), 4)
  expect_equal(table.concat(nn.Conv1d(4, 6, 3, { groups = 2 }).weight.shape, ","), "6,2,3")
  expect_equal(table.concat(nn.Conv2d(6, 9, 3, { groups = 3 }).weight.shape, ","), "9,2,3,3")
  local norm = nn.LayerNorm { 2, 3 }
  expect_close(norm.weight, torch.ones { 2, 3 })
  expect_close(norm.bias, torch.zeros { 2, 3 })
  expect_close(nn.RMSNorm(4).weight, torch.ones { 4 })
  local small = nn.Embedding(400, 20, { std = 0.02 }).weight:std():item()
  assert(math.abs(small - 0.02) < 0.002)
end)

test("the functions that apply layers refuse unknown options with the nearest", function()
  local x, conv = torch.zeros { 1, 2, 4 }, nn.Conv1d(2, 2, 1)
  expect_error(function() nn.layer_norm(nn.LayerNorm(4), x, { epsilon = 1 }) end,
    "nn.layer_norm: unknown argument 'epsilon'")
  expect_error(function() nn.rms_norm(nn.RMSNorm(4), x, { epz = 1 }) end, "did you mean 'eps'?")
  expect_error(function() nn.conv1d(conv, x, { strides = 1 }) end, "did you mean 'stride'?")
  expect_error(function() nn.mlp(nn.MLP { 4, 2 }, x, { activations = torch.relu }) end,
    "did you mean 'activation'?")
  expect_error(function() nn.attention(x, x, x, { casual = true }) end, "did you mean 'causal'?",
    "nn_spec.lua:")
end)

test("wrong shapes are errors with both shapes and this file", function()
  expect_error(function() nn.linear(nn.Linear(4, 2), torch.zeros { 3, 5 }) end, "nn_spec.lua:",
    "5", "4")
  expect_error(function() nn.embedding(nn.Embedding(4, 2), torch.tensor { 4 }) end, "nn_spec.lua:")
  expect_error(function() nn.embedding(nn.Embedding(4, 2), torch.tensor { 0.5 }) end,
    "nn_spec.lua:")
  expect_error(function() nn.gru_cell(nn.GRUCell(4, 2), torch.zeros { 3, 4 }, torch.zeros { 2,
    2 }) end,
    "nn_spec.lua:")
  expect_error(function() nn.layer_norm(nn.LayerNorm(4), torch.zeros { 3, 5 }) end, "nn_spec.lua:")
  expect_error(function() nn.conv2d(nn.Conv2d(3, 2, 3), torch.zeros { 1, 4, 5, 5 }) end,
    "nn_spec.lua:")
end)

test("every stored case of a layer was used", function()
  local n = 0
  for name in pairs(stored) do
    local case = name:match "^(.-)%.out%."
    if case and case ~= "gpt2" and case ~= "scripted" then
      n = n + 1
      assert(used[case], "no test reads the case " .. case)
    end
  end
  assert(n >= 39, "only " .. n)
end)

testing.test("one query in each head of a group needs no copies of keys and values", function()
  local q, k, v = torch.randn { 3, 6, 1, 8 }, torch.randn { 3, 2, 9, 8 }, torch.randn { 3, 2, 9, 5 }
  local seen = torch.rand({ 3, 1, 1, 9 }):gt(0.4)
  for _, mask in ipairs { torch.zeros { 3, 1, 1, 9 }, seen, torch.randn { 3, 6, 1, 9 },
    seen[0][0] } do
    local expected = redco.nn.attention(q, k:repeat_interleave(3, -3), v:repeat_interleave(3, -3),
      { softcap = 2, mask = mask })
    testing.expect_close(redco.nn.attention(q, k, v,
      { softcap = 2, mask = mask, enable_gqa = true }), expected, 1e-5, 1e-6)
  end
end)

testing.finish()
