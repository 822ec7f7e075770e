-- Norms, pooling, recurrent stacks, bags of embeddings, losses and distributions against PyTorch.
local redco = require "redco"
local testing = require "testing"

local torch, nn, distributions = redco.torch, redco.nn, redco.distributions
local test, expect_error = testing.test, testing.expect_error
local expect_close, expect_equal = testing.expect_close, testing.expect_equal

-- Made by tests/tools/make_layer_cases.py, which says what the names mean.
local stored = torch.load "layer_cases.safetensors"

local function part(prefix)
  local found = {}
  for name, tensor in pairs(stored) do
    if name:sub(1, #prefix) == prefix then found[name:sub(#prefix + 1)] = tensor end
  end
  return found
end

local used = {}

--- Tests that forward(params, inputs) gives the stored outputs, in order, the stored gradients and
--- the stored state.
local function layer_test(name, forward)
  used[name] = true
  test(name .. " equals PyTorch's", function()
    local inputs, params = part(name .. ".in."), part(name .. ".p.")
    assert(next(inputs), "no stored case")
    for _, set in ipairs { inputs, params } do
      for key, tensor in pairs(set) do
        set[key] = tensor.dtype == "float32" and tensor:clone():requires_grad_() or tensor
      end
    end
    for key, tensor in pairs(part(name .. ".before.")) do params[key] = tensor:clone() end
    local outputs, total = { forward(params, inputs) }, nil
    for i, expected in pairs(part(name .. ".out.")) do
      local y = assert(outputs[tonumber(i)], "no output " .. i)
      expect_equal(y.dtype, expected.dtype)
      expect_close(y:detach(), expected, 1e-5, 3e-6)
      local term = (y * stored[name .. ".r." .. i]):sum()
      total = total and total + term or term
    end
    total:backward()
    for key, expected in pairs(part(name .. ".g.")) do
      local set, rest = key:match "^(%w+)%.(.*)$"
      local leaf = (set == "in" and inputs or params)[rest]
      -- Targets, which have no gradient in the stored case.
      if not leaf.grad then assert(expected:eq(0):all():item(), "no gradient for " .. rest) end
      if leaf.grad then expect_close(leaf.grad, expected, 2e-5, 1e-5) end
    end
    for key, expected in pairs(part(name .. ".after.")) do
      expect_close(params[key], expected, 1e-5, 1e-6)
    end
  end)
end

-- ---- layers ----

layer_test("batch_norm", function(p, i) return nn.batch_norm(p, i.x, { train = true }) end)
layer_test("batch_norm_1d", function(p, i)
  return nn.batch_norm(p, i.x, { train = true, momentum = 0.3, eps = 0.1 })
end)
layer_test("batch_norm_eval", function(p, i) return nn.batch_norm(p, i.x) end)
layer_test("batch_norm_plain", function(p, i) return nn.batch_norm(p, i.x, { train = true }) end)
layer_test("group_norm", function(p, i) return nn.group_norm(p, i.x, { num_groups = 2 }) end)
layer_test("instance_norm", function(p, i) return nn.instance_norm(p, i.x) end)
layer_test("instance_norm_plain", function(_, i) return nn.instance_norm({}, i.x) end)
layer_test("conv3d", function(p, i) return nn.conv3d(p, i.x, { padding = 1 }) end)
layer_test("conv_transpose1d", function(p, i)
  return nn.conv_transpose1d(p, i.x, { stride = 2, padding = 1, output_padding = 1, groups = 2 })
end)
layer_test("conv_transpose2d", function(p, i)
  return nn.conv_transpose2d(p, i.x, { stride = { 2, 1 }, dilation = 2 })
end)
layer_test("conv_transpose3d", function(p, i) return nn.conv_transpose3d(p, i.x) end)
layer_test("rnn", function(p, i) return nn.rnn(p, i.x, { h = i.s1, nonlinearity = "relu" }) end)
layer_test("gru", function(p, i) return nn.gru(p, i.x) end)
layer_test("lstm", function(p, i) return nn.lstm(p, i.x, { h = i.s1, c = i.s2 }) end)
layer_test("rnn_cell", function(p, i) return nn.rnn_cell(p, i.x, i.s1) end)

layer_test("max_pool2d", function(_, i)
  return nn.max_pool2d(i.x, { 2, 3 }, { stride = 1, padding = 1 })
end)
layer_test("max_pool1d", function(_, i) return nn.max_pool1d(i.x[0], 3, { dilation = 2 }) end)
layer_test("max_pool3d", function(_, i) return nn.max_pool3d(i.x, 2, { ceil_mode = true }) end)
layer_test("avg_pool2d", function(_, i)
  return nn.avg_pool2d(i.x, 2, { padding = 1, count_include_pad = false })
end)
layer_test("adaptive_avg_pool2d", function(_, i) return nn.adaptive_avg_pool2d(i.x, { 2, 4 }) end)
layer_test("adaptive_max_pool1d", function(_, i) return nn.adaptive_max_pool1d(i.x[0], 4) end)

for _, mode in ipairs { "sum", "mean", "max" } do
  layer_test("embedding_bag_" .. mode, function(p, i)
    return nn.embedding_bag(p, i.ids, { mode = mode, padding_idx = 5 })
  end)
end
layer_test("embedding_bag_weighted", function(p, i)
  return nn.embedding_bag(p, i.ids, { mode = "sum", per_sample_weights = i.w })
end)

test("recurrent stacks step by step, as on a split batch, equal the fused operators", function()
  local x, is_split = torch.randn { 3, 4, 5 }, false
  local split = setmetatable({}, { __index = function(_, name)
    if name == "is_sharded" then return function() return is_split end end
    local value = x[name]
    if type(value) ~= "function" then return value end
    return function(_, ...) return value(x, ...) end
  end })
  for _, name in ipairs { "RNN", "GRU", "LSTM" } do
    local params = nn[name](5, 6, { num_layers = 1, bidirectional = true })
    local results = {}
    for i = 1, 2 do
      is_split = i == 2
      -- Only the first choice depends on is_sharded.
      results[i] = { nn[name:lower()](params, is_split and split or x) }
    end
    for i, expected in ipairs(results[1]) do expect_close(results[2][i], expected, 1e-5, 1e-6) end
  end
end)

test("dropout of a recurrent stack is between layers only, and draws from rng", function()
  local x = torch.randn { 2, 3, 4 }
  local one, two = nn.GRU(4, 5), nn.GRU(4, 5, { num_layers = 2 })
  local function run(params, seed)
    return nn.gru(params, x, { train = true, dropout = 0.5, rng = redco.Rng(seed) })
  end
  assert(torch.equal((run(one, 1)), (nn.gru(one, x))))
  assert(torch.equal((run(two, 1)), (run(two, 1))))
  assert(not torch.equal((run(two, 1)), (run(two, 2))))
  expect_error(function() nn.gru(two, x, { train = true, dropout = 0.5 }) end, "rng")
end)

test("wrong arguments of layers are errors of the line that called", function()
  local x, norm = torch.randn { 2, 4, 3 }, nn.BatchNorm(4)
  local image = torch.randn { 1, 3, 4, 4 }
  for _, case in ipairs {
    { function() nn.batch_norm(norm, torch.randn { 4 }) end, "[4]" },
    { function() nn.batch_norm(nn.BatchNorm(2), torch.randn { 1, 2 }, { train = true }) end,
      "one value per channel" },
    { function() nn.batch_norm(nn.BatchNorm(2), torch.randn { 2, 3 }, { train = true }) end, "2" },
    { function() nn.group_norm(nn.GroupNorm(4), x, { num_groups = 3 }) end, "num_groups = 3" },
    { function() nn.group_norm(nn.GroupNorm(4), x) end, "num_groups is missing" },
    { function() nn.instance_norm({}, torch.randn { 2, 4 }) end, "[2, 4]" },
    { function() nn.embedding_bag(nn.EmbeddingBag(3, 2), torch.tensor { 1 }, { mode = "men" }) end,
      "men" },
    { function()
      nn.embedding_bag(nn.EmbeddingBag(3, 2), torch.tensor { 1, 2 },
        { mode = "sum", per_sample_weights = torch.ones { 3 } })
    end, "[3]", "[2]" },
    { function() nn.lstm(nn.LSTM(3, 4), torch.randn { 5, 3 }) end, "[5, 3]" },
    { function() nn.lstm(nn.LSTM(3, 4), torch.randn { 5, 0, 3 }) end, "no steps" },
    { function() nn.gru(nn.GRU(3, 4), x, { h = torch.zeros { 2, 2, 4 } }) end, "[2, 2, 4]",
      "[1, 2, 4]" },
    { function() nn.rnn(nn.RNN(3, 4), x, { nonlinearity = "sin" }) end, "sin" },
    { function() nn.lstm(nn.LSTM(3, 4), torch.randn { 5, 2, 4 }) end, "[batch, length, 3]" },
    { function() nn.lstm({}, x) end, "weight_ih_l0" },
    { function() nn.max_pool2d(image, 2, { strid = 1 }) end, "strid" },
    { function() nn.conv_transpose2d(nn.ConvTranspose2d(4, 3, 2), image) end, "4" },
    { function() nn.conv_transpose2d(image, image) end, "nn.ConvTranspose2d" },
  } do
    expect_error(case[1], "layers_spec.lua:", unpack(case, 2))
  end
  norm.running_mean:requires_grad_()
  expect_error(function() nn.batch_norm(norm, x, { train = true }) end, "layers_spec.lua:",
    "running_mean", "redco.grad")
  nn.batch_norm(norm, x)  -- in evaluation they are not written
end)

test("batch norm inside redco.checkpoint updates its statistics once", function()
  local x, norm, plain = torch.randn { 6, 3 }, nn.BatchNorm(3), nn.BatchNorm(3)
  local weight = torch.randn({ 3, 3 }):requires_grad_()
  local function forward(params, z) return nn.batch_norm(params, z, { train = true }):tanh() end
  local y = redco.checkpoint(function(z) return forward(norm, z) end, torch.linear(x, weight))
  y:sum():backward()
  local gradient = weight.grad:clone()
  weight.grad:zero_()
  forward(plain, torch.linear(x, weight)):sum():backward()
  expect_close(norm.running_mean, plain.running_mean)
  expect_close(norm.running_var, plain.running_var)
  expect_close(gradient, weight.grad)
end)

test("running statistics are told by their names", function()
  expect_equal(nn.is_running_statistic "blocks.1.norm.running_mean", true)
  expect_equal(nn.is_running_statistic "running_var", true)
  expect_equal(nn.is_running_statistic "running_var.weight", false)
  expect_equal(nn.is_running_statistic "norm.weight", false)
end)

test("parameters have PyTorch's shapes, and the generator determines them", function()
  local function shapes(params)
    local all = {}
    for i, path in ipairs(redco.tree.paths(params)) do
      all[i] = path .. " " .. table.concat(redco.tree.leaves(params)[i].shape, ",")
    end
    return table.concat(all, " ")
  end
  expect_equal(shapes(nn.ConvTranspose2d(6, 4, { 2, 3 }, { groups = 2 })),
    "bias 4 weight 6,2,2,3")
  expect_equal(shapes(nn.RNN(3, 4, { num_layers = 2, bias = false })),
    "weight_hh_l0 4,4 weight_hh_l1 4,4 weight_ih_l0 4,3 weight_ih_l1 4,4")
  expect_equal(shapes(nn.GRU(3, 4, { bias = false, bidirectional = true, num_layers = 2 })),
    "weight_hh_l0 12,4 weight_hh_l0_reverse 12,4 weight_hh_l1 12,4 weight_hh_l1_reverse 12,4 "
    .. "weight_ih_l0 12,3 weight_ih_l0_reverse 12,3 weight_ih_l1 12,8 weight_ih_l1_reverse 12,8")
  expect_equal(shapes(nn.BatchNorm(2)), "bias 2 running_mean 2 running_var 2 weight 2")
  expect_equal(shapes(nn.BatchNorm(2, { affine = false })), "running_mean 2 running_var 2")
  for _, name in ipairs { "ConvTranspose1d", "LSTM", "EmbeddingBag" } do
    local function draw(seed) return nn[name](3, 4, name:find "Conv" and 2
      or { generator = redco.Rng(seed) }, { generator = redco.Rng(seed) }) end
    local first = redco.tree.leaves(draw(1))[1]
    assert(torch.equal(first, redco.tree.leaves(draw(1))[1]))
    assert(not torch.equal(first, redco.tree.leaves(draw(2))[1]))
  end
  local bound = 1 / math.sqrt(40 * 9)
  local weight = nn.ConvTranspose2d(50, 40, 3).weight
  assert(weight:max():item() < bound and weight:max():item() > 0.99 * bound)
end)

test("eye_, dirac_, sparse_ and calculate_gain", function()
  local init = nn.init
  expect_equal(init.eye_(torch.randn { 2, 3 }):tolist()[2][2], 1)
  expect_equal(init.eye_(torch.randn { 2, 3 }):sum():item(), 2)
  local weight = init.dirac_(torch.randn { 4, 2, 3 }, { groups = 2 })
  local x = torch.randn { 1, 2, 5 }
  local y = torch.conv1d(x, weight, nil, 1, 1)
  expect_close(y[{ {}, { 0, 2 } }], x)
  expect_close(y[{ {}, { 2, 4 } }], x)
  local sparse = init.sparse_(torch.randn { 10, 7 }, { sparsity = 0.25 })
  expect_equal(sparse:eq(0):sum(0):tolist()[1], 3)
  expect_equal(sparse:eq(0):sum():item(), 21)
  expect_close(torch.tensor(init.calculate_gain("leaky_relu", 0.2)),
    torch.tensor(math.sqrt(2 / 1.04)))
  expect_error(function() init.dirac_(torch.randn { 4, 2 }) end, "layers_spec.lua:", "[4, 2]")
  expect_error(function() init.sparse_(torch.randn { 4, 2 }, { sparsity = 2 }) end, "2")
  expect_error(function() init.eye_(torch.randn { 4 }) end, "[4]")
end)

-- ---- losses ----

local loss_arguments = {
  l1_loss = {}, mse_loss = {}, soft_margin_loss = {}, multilabel_margin_loss = {}, kl_div = {},
  smooth_l1_loss = { beta = 0.7 }, huber_loss = { delta = 0.6 },
  binary_cross_entropy = { "weight" }, binary_cross_entropy_with_logits = { "pos_weight" },
  nll_loss = { "weight", ignore_index = 1 }, poisson_nll_loss = { full = true },
  gaussian_nll_loss = { full = true }, hinge_embedding_loss = { margin = 0.8 },
  margin_ranking_loss = { margin = 0.2 }, cosine_embedding_loss = { margin = -0.9 },
  triplet_margin_loss = { margin = 1.5, p = 1, swap = true },
  multi_margin_loss = { "weight", p = 2, margin = 0.7 },
  multilabel_soft_margin_loss = { "weight" },
}
for name, given in pairs(loss_arguments) do
  for _, reduction in ipairs { "mean", "sum", "none" } do
    layer_test(name .. "_" .. reduction, function(_, i)
      local o = { reduction = reduction }
      for key, value in pairs(given) do
        if key == 1 then o[value] = i.w:detach() else o[key] = value end
      end
      if name == "gaussian_nll_loss" then return nn[name](i.x, i.y, i.v, o) end
      local is_target = not (name:find "cosine" or name:find "triplet" or name:find "ranking"
        or name:find "l1_loss" or name:find "mse" or name:find "huber")
      local y = is_target and i.y:detach() or i.y
      if not i.t then return nn[name](i.x, y, o) end
      return nn[name](i.x, y, name:find "triplet" and i.t or i.t:detach(), o)
    end)
  end
end
for _, reduction in ipairs { "mean", "sum", "none" } do
  layer_test("ctc_loss_" .. reduction, function(_, i)
    return nn.ctc_loss(i.x:log_softmax(-1), i.y, { 6, 5, 6 }, { 2, 1, 2 },
      { reduction = reduction })
  end)
end
layer_test("kl_div_batchmean", function(_, i)
  return nn.kl_div(i.x, i.y, { log_target = true, reduction = "batchmean" })
end)

test("losses refuse other shapes and unknown reductions", function()
  local x, y = torch.randn { 3, 1 }, torch.randn { 3 }
  for name in pairs(loss_arguments) do
    if name ~= "nll_loss" and name ~= "multi_margin_loss" then
      local has_three = name:find "gaussian" or name:find "ranking" or name:find "cosine"
        or name:find "triplet"
      expect_error(function() nn[name](x, y, has_three and y or nil) end, "layers_spec.lua:",
        "nn." .. name, "[3, 1]", "[3]")
    end
  end
  expect_error(function() nn.mse_loss(x, x, { reduction = "avg" }) end, "layers_spec.lua:",
    "reduction", "avg")
  expect_error(function() nn.kl_div(x, x, { reduction = "avg" }) end, "layers_spec.lua:", "avg")
  expect_error(function() nn.mse_loss(x, 3) end, "layers_spec.lua:", "target", "number")
  expect_error(function() nn.huber_loss(x, x, { dleta = 1 }) end, "did you mean 'delta'")
end)

-- ---- distributions ----

local makers = {
  normal = function(i, n) return distributions.Normal(i.loc[n], i.scale[n]) end,
  independent = function(i, n)
    return distributions.Independent(distributions.Normal(i.loc[n], i.scale[n]), 1)
  end,
  tanh_normal = function(i, n) return distributions.TanhNormal(i.loc[n], i.scale[n]) end,
  categorical = function(i, n) return distributions.Categorical { logits = i.logits[n] } end,
  categorical_probs = function(i, n) return distributions.Categorical { probs = i.probs[n] } end,
  bernoulli = function(i, n) return distributions.Bernoulli { logits = i.logits[n] } end,
  bernoulli_probs = function(i, n) return distributions.Bernoulli { probs = i.probs[n] } end,
}
for name, make in pairs(makers) do
  layer_test("distribution_" .. name, function(_, i)
    local p, q = make(i, 0), make(i, 1)
    local results = { p:log_prob(i.value:detach()) }
    if name ~= "tanh_normal" then results[2] = p:entropy() end
    results[#results + 1] = distributions.kl_divergence(p, q)
    return unpack(results)
  end)
end

test("draws have the distribution's mean and variance, and depend on the generator only", function()
  local n = 40000
  local probs = torch.tensor { 0.7, 0, 0.3 }
  local function draw(d, seed) return d:sample { rng = redco.Rng(seed), sample_shape = { n } } end
  local categorical = distributions.Categorical { probs = probs }
  local drawn = draw(categorical, 1)
  expect_equal(drawn.dtype, "int64")
  expect_close(torch.bincount(drawn, nil, 3):float() / n, probs, 0, 0.01)
  assert(torch.equal(drawn, draw(categorical, 1)) and not torch.equal(drawn, draw(categorical, 2)))
  for _, d in ipairs {
    distributions.Normal(torch.tensor { 1.5, -2 }, torch.tensor { 0.5, 2 }),
    distributions.Bernoulli { probs = torch.tensor { 0.2, 0.9 } },
  } do
    local values = draw(d, 3)
    expect_equal(table.concat(values.shape, ","), n .. ",2")
    expect_close(values:mean { 0 }, d.mean, 0, 0.05)
    expect_close(values:var(0), d.variance, 0, 0.06)
  end
  local tanh = draw(distributions.TanhNormal(torch.tensor { 0.5 }, 1), 4)
  expect_close(tanh:atanh():mean(), torch.tensor(0.5), 0, 0.02)
end)

test("rsample has gradients, and the log-probability of its draw is exact", function()
  local loc = torch.tensor({ 0, 12 }, { dtype = "float32" }):requires_grad_()
  local d = distributions.TanhNormal(loc, 0.5)
  local value, log_prob = d:rsample_and_log_prob { rng = redco.Rng(1) }
  value:sum():backward { retain_graph = true }
  assert(loc.grad[0]:item() > 0)
  -- tanh(12) is 1 in float32, so that only the pair is exact.
  assert(log_prob[1]:item() > 15 and log_prob:isfinite():all():item())
  expect_close(d:log_prob(value:detach())[0], log_prob[0]:detach(), 1e-4)
  local both = distributions.Independent(d, 1)
  local _, summed = both:rsample_and_log_prob { rng = redco.Rng(1) }
  expect_close(summed:detach(), log_prob:detach():sum())
  local one = distributions.Categorical { logits = torch.zeros { 3 } }
  expect_error(function() one:rsample { rng = redco.Rng(1) } end, "layers_spec.lua:", "Categorical")
end)

test("extreme parameters give numbers, not NaN", function()
  local sure = distributions.Categorical { logits = torch.tensor { 0, -math.huge, -1e4 } }
  expect_equal(sure:sample { rng = redco.Rng(1) }:item(), 0)
  expect_close(sure:entropy(), torch.zeros {})
  expect_close(distributions.kl_divergence(sure, sure), torch.zeros {})
  local half = distributions.Categorical { probs = torch.tensor { 0.5, 0.5, 0 } }
  expect_equal(distributions.kl_divergence(half, distributions.Categorical {
    probs = torch.ones { 1, 3 } * torch.tensor { 1, 0, 0 } }):item(), math.huge)
  local bits = distributions.Bernoulli { probs = torch.arange(2):float() }
  expect_equal(table.concat(bits:sample { rng = redco.Rng(2) }:tolist(), " "), "0 1")
  assert(bits:entropy():isfinite():all():item())
  -- A divergence is infinite where q excludes what p draws.
  local function divergence(p, q)
    return distributions.kl_divergence(
      distributions.Bernoulli { probs = torch.tensor({ p }, { dtype = "float64" }) },
      distributions.Bernoulli { probs = torch.tensor({ q }, { dtype = "float64" }) }):item()
  end
  expect_equal(divergence(0.5, 0), math.huge)
  expect_equal(divergence(0.5, 1), math.huge)
  expect_equal(divergence(1, 0), math.huge)
  expect_equal(divergence(0, 0), 0)
  expect_equal(divergence(1, 1), 0)
  expect_close(torch.tensor(divergence(0, 0.5)), torch.tensor(math.log(2)))
  local low = distributions.Bernoulli { logits = torch.tensor { -200.5 } }
  local even = distributions.Bernoulli { logits = torch.zeros { 1 } }
  expect_close(distributions.kl_divergence(even, low), torch.tensor { 100.25 - math.log(2) }, 1e-6)
  local tanh = distributions.TanhNormal(torch.zeros { 2 }, 1)
  assert(tanh:log_prob(torch.tensor({ -1, 1 }, { dtype = "float32" })):isfinite():all():item())
  for _, dtype in ipairs { "bfloat16", "float16" } do
    local function numbers(values) return torch.tensor(values, { dtype = dtype }) end
    local function expect_finite(t) assert(t:isfinite():all():item(), tostring(t)) end
    local ends = distributions.Bernoulli { probs = numbers { 0, 1 } }
    expect_finite(ends:log_prob(numbers { 0, 1 }))
    expect_finite(ends:log_prob(numbers { 1, 0 }))
    expect_finite(ends:entropy())
    local one = distributions.Categorical { probs = numbers { 0, 1, 0 } }
    expect_finite(one:entropy())
    expect_finite(one:log_prob(torch.tensor(0)))
    expect_finite(distributions.TanhNormal(numbers { 0, 0 }, 1):log_prob(numbers { -1, 1 }))
  end
end)

test("distributions inside vmap", function()
  local logits, actions = torch.randn { 5, 3 }, torch.tensor { 0, 2, 1, 1, 0 }
  local one = redco.vmap(function(l, a)
    return distributions.Categorical { logits = l }:log_prob(a)
  end)(logits, actions)
  expect_close(one, distributions.Categorical { logits = logits }:log_prob(actions))
end)

test("wrong arguments of distributions are errors of the line that called", function()
  local normal = distributions.Normal(torch.zeros { 2 }, 1)
  local bits = distributions.Bernoulli { logits = torch.zeros { 2 } }
  for _, case in ipairs {
    { function() distributions.Normal("a", 2) end, "expected a tensor" },
    { function() distributions.Normal(torch.zeros { 2 }, "1") end, "scale" },
    { function() distributions.Normal(torch.tensor { 1, 2 }, 1) end, "int64" },
    { function() distributions.Normal(torch.zeros { 2 }, torch.ones { 3 }) end, "2", "3" },
    { function() distributions.Categorical {} end, "either probs or logits" },
    { function() distributions.Categorical { logits = torch.zeros {} } end, "classes" },
    { function() distributions.Bernoulli { probs = 0.5 } end, "probs", "number" },
    { function() distributions.Independent(normal, 2) end, "from 0 to 1", "2" },
    { function() distributions.Independent(3, 1) end, "base" },
    { function() distributions.kl_divergence(normal, bits) end, "Normal", "Bernoulli" },
    { function() distributions.kl_divergence(normal, distributions.Independent(normal, 1)) end,
      "Independent" },
    { function() normal:sample() end, "rng" },
    { function() normal:sampel() end, "sampel" },
    { function() distributions.TanhNormal(torch.zeros { 2 }, 1):entropy() end, "TanhNormal" },
    { function() return distributions.normal end, "Normal" },
  } do
    expect_error(case[1], "layers_spec.lua:", unpack(case, 2))
  end
  expect_equal(tostring(normal), "Normal([2])")
end)

test("all stored cases are compared", function()
  for name in pairs(stored) do
    local case = name:match "^([%w_]+)%."
    assert(used[case], "nothing compares " .. case)
  end
end)

test("distributions of numbers alone are float32 on the CPU", function()
  local d = redco.distributions.Normal(1, 2)
  expect_equal(d:log_prob(torch.tensor(1.0, { dtype = "float32" })):item(),
    torch.tensor(-math.log(2) - 0.5 * math.log(2 * math.pi), { dtype = "float32" }):item())
  expect_equal(d:sample({ rng = torch.Generator(1) }).dtype, "float32")
end)

test("gradients of batch_norm where an image has one row", function()
  local generator = torch.Generator(4)
  for _, shape in ipairs { { 1, 1, 8, 3 }, { 2, 4, 1, 3 }, { 2, 2, 4, 3 } } do
    local x = torch.randn(shape, { generator = generator })
    local weights = torch.randn(shape, { generator = generator })
    local norm = nn.BatchNorm(3)
    local function gradient(normalised)
      return redco.grad(function(bias) return (normalised(bias) * weights):sum() end)(norm.bias)
    end
    local found = gradient(function(bias)
      local given = { weight = norm.weight, bias = bias, running_mean = norm.running_mean,
        running_var = norm.running_var }
      return nn.batch_norm(given, x:transpose(1, 3)):transpose(1, 3)
    end)
    testing.expect_close(found, weights:sum { 0, 1, 2 }, 1e-5, 1e-5)
  end
end)

testing.finish()
