-- redco.contrastive, redco.gather_micro_batches, the files of sentence encoders and the scores of
-- rankings: one loss however a batch is cut, numbers of sentence-transformers, and bad input.
local redco = require "redco"
local testing = require "testing"

local contrastive, metrics, nn, torch = redco.contrastive, redco.metrics, redco.nn, redco.torch
local test, expect_close, expect_equal = testing.test, testing.expect_close, testing.expect_equal
local expect_error = testing.expect_error
local source = os.getenv "REDCO_SOURCE" or "../.."

local function doubles(values) return torch.tensor(values, { dtype = "float64" }) end

local anchors = doubles { { 1, 0.5 }, { -0.3, 1 }, { 0.2, -0.7 } }
local positives = doubles { { 0.9, 0.2 }, { 0.3, 1.1 }, { -0.5, -0.4 } }
local negatives = doubles { { -0.5, 1 }, { 1, 0.4 }, { 0.1, 0.6 } }

-- By hand, in loops.
local function cross_entropy(rows, scale)
  local sum = 0
  for i, row in ipairs(rows) do
    local total = 0
    for _, score in ipairs(row) do total = total + math.exp(score * scale) end
    sum = sum + math.log(total) - row[i] * scale
  end
  return sum / #rows
end

local function cosines(a, b)
  local rows = {}
  for i, x in ipairs(a:tolist()) do
    rows[i] = {}
    for j, y in ipairs(b:tolist()) do
      rows[i][j] = (x[1] * y[1] + x[2] * y[2])
        / math.sqrt((x[1] ^ 2 + x[2] ^ 2) * (y[1] ^ 2 + y[2] ^ 2))
    end
  end
  return rows
end

test("losses by hand", function()
  local loss, count = contrastive.multiple_negatives_ranking({ anchors, positives, negatives })
  expect_close(loss, doubles(cross_entropy(
    cosines(anchors, torch.cat { positives, negatives }), 20)))
  expect_equal(count:item(), 3)
  expect_close((contrastive.multiple_negatives_symmetric_ranking({ anchors, positives },
    { scale = 3 })), doubles((cross_entropy(cosines(anchors, positives), 3)
    + cross_entropy(cosines(positives, anchors), 3)) / 2))
  local s, sum = cosines(anchors, positives), 1
  local labels = { 0.2, 0.9, 0.2 }
  for i = 1, 3 do
    for j = 1, 3 do
      if labels[i] < labels[j] then sum = sum + math.exp(2 * (s[i][i] - s[j][j])) end
    end
  end
  expect_close((contrastive.cosent({ anchors, positives },
    { scale = 2, labels = doubles(labels) })), doubles(math.log(sum)))
end)

-- ---- micro-batches ----

local generator = torch.Generator(5)
local rows = {}
for i = 1, 12 do
  rows[i] = { a = torch.randn({ 6 }, { generator = generator }):double(),
    b = torch.randn({ 6 }, { generator = generator }):double(), score = doubles(i % 5 / 4) }
end

local initial = redco.tree.map(function(leaf) return leaf:double() end, {
  layers = nn.MLP({ 6, 8, 4 }, { generator = torch.Generator(2) }), scale = torch.tensor(3.0),
})

local losses = {
  ranking = function(a, b) return contrastive.multiple_negatives_ranking { a, b } end,
  symmetric = function(a, b)
    return contrastive.multiple_negatives_symmetric_ranking({ a, b }, { scale = 2 })
  end,
  cosent = function(a, b, batch)
    return contrastive.cosent({ a, b }, { labels = batch.score, scale = 4 })
  end,
  matryoshka = function(a, b)
    return contrastive.matryoshka({ a, b },
      { loss = "multiple_negatives_ranking", matryoshka_dims = { 4, 2 } })
  end,
}

-- Parameters after two steps of `batch` examples, in micro-batches of `micro`.
local function trained(loss, micro, batch, o)
  local trainer = redco.Trainer {
    deployer = redco.Deployer { seed = 3, verbose = false }, params = initial,
    compute_dtype = "float64", collate_fn = redco.data.default_collate,
    accumulate_grad_batches = math.ceil(batch / micro),
    loss_fn = function(_, _, params, given, is_training)
      local function vectors_of(x)
        local y = nn.mlp(params.layers, x, { activation = torch.tanh })
        return o and o.dropout and torch.dropout(y, 0.3, is_training) or y
      end
      local value, count = loss(vectors_of(given.a), vectors_of(given.b), given)
      return value * params.scale, count, { distance = value }
    end,
    optimizer = redco.optim.sgd { learning_rate = 0.05 },
  }
  trainer:fit { train_examples = rows, per_device_batch_size = micro, n_epochs = 2 }
  return trainer.params
end

test("the loss is that of the whole batch, however it is cut", function()
  for name, loss in pairs(losses) do
    local expected = trained(loss, 12, 12)
    for _, micro in ipairs { 6, 4, 3, 1, 5 } do
      local params = trained(loss, micro, 12)
      for i, leaf in ipairs(redco.tree.leaves(params)) do
        local ok, message = pcall(expect_close, leaf, redco.tree.leaves(expected)[i], 1e-9, 1e-12)
        assert(ok, ("%s, %d: %s"):format(name, micro, tostring(message)))
      end
    end
  end
end)

test("dropout is that of the whole batch", function()
  local expected = trained(losses.ranking, 12, 12, { dropout = true })
  local params = trained(losses.ranking, 4, 12, { dropout = true })
  for i, leaf in ipairs(redco.tree.leaves(params)) do
    expect_close(leaf, redco.tree.leaves(expected)[i], 1e-9, 1e-12)
  end
end)

test("CLIP's loss is that of the whole batch", function()
  local g, examples, clips = torch.Generator(5), {}, {}
  for i = 1, 8 do
    examples[i] = { input_ids = torch.cat { torch.randint(5, 35, { 4 }, { generator = g }),
      torch.tensor { 39 } }, pixel_values = torch.rand({ 3, 12, 12 }, { generator = g }) }
  end
  for i, micro in ipairs { 8, 4, 2, 3 } do
    local clip = redco.models.from_pretrained(source .. "/tests/cases/clip", { dtype = "float64" })
    local trainer = redco.Trainer { deployer = redco.Deployer { seed = 3, verbose = false },
      params = clip.params, loss_fn = clip.loss_fn, compute_dtype = "float64",
      collate_fn = redco.data.default_collate, accumulate_grad_batches = math.ceil(8 / micro),
      optimizer = redco.optim.sgd { learning_rate = 0.1 } }
    trainer:fit { train_examples = examples, per_device_batch_size = micro, n_epochs = 2 }
    clips[i] = trainer.params
    for name, leaf in pairs(clips[i]) do
      if leaf.dtype == "float64" then expect_close(leaf, clips[1][name], 1e-9, 1e-12) end
    end
  end
end)

test("what is gathered must be the same in each pass", function()
  local calls = 0
  local function fit(loss_fn)
    calls = 0
    local trainer = redco.Trainer { deployer = redco.Deployer { seed = 3, verbose = false },
      params = nn.Linear(6, 2), collate_fn = redco.data.default_collate, loss_fn = loss_fn,
      optimizer = redco.optim.sgd { learning_rate = 0.1 }, accumulate_grad_batches = 3 }
    trainer:fit { train_examples = rows, per_device_batch_size = 4, n_epochs = 1 }
  end
  local function vectors_of(params, batch) return nn.linear(params, batch.a:float()) end
  expect_error(function()
    fit(function(_, _, params, batch)
      calls = calls + 1
      local y = vectors_of(params, batch)
      if calls ~= 3 then y = redco.gather_micro_batches(y) end
      return y:square():mean()
    end)
  end, "gather_micro_batches", "as often in each micro-batch")
  expect_error(function()
    fit(function(_, _, params, batch)
      calls = calls + 1
      local y = vectors_of(params, batch)
      return redco.gather_micro_batches(calls > 4 and y:narrow(0, 0, 2) or y):square():mean()
    end)
  end, "the same in each pass", "[2, 2]")
  expect_error(function()
    fit(function(_, _, params, batch)
      return redco.gather_micro_batches(vectors_of(params, batch):mean())
    end)
  end, "a dimension of examples")
  local x = torch.ones { 2, 3 }
  assert(redco.gather_micro_batches(x):equal(x))
end)

-- ---- bad input ----

test("vectors and options that are wrong", function()
  local ranking = contrastive.multiple_negatives_ranking
  expect_error(function() ranking(anchors) end, "vectors", "a list of 2 tensors")
  expect_error(function() ranking { anchors } end, "got 1")
  expect_error(function() ranking { anchors, positives:narrow(0, 0, 2) } end, "entry 2 has 2 rows")
  expect_error(function() ranking { anchors, torch.ones { 3, 5 } } end, "entry 2", "[batch, 2]")
  expect_error(function() ranking({ anchors, positives }, { scales = 2 }) end, "scales", "scale")
  expect_error(function() ranking({ anchors, positives }, { similarity_fct = "l2" }) end, "cos_sim")
  expect_error(function() contrastive.cosent { anchors, positives } end, "labels", "[3]")
  local function matryoshka(options) contrastive.matryoshka({ anchors, positives }, options) end
  expect_error(function() matryoshka { loss = "infonce", matryoshka_dims = { 2 } } end, "infonce")
  expect_error(function() matryoshka { loss = "cosent" } end, "matryoshka_dims")
  expect_error(function() matryoshka { loss = "multiple_negatives_ranking",
    matryoshka_dims = { 3 } } end, "from 1 to 2")
  expect_error(function() matryoshka { loss = "multiple_negatives_ranking",
    matryoshka_dims = { 2, 1 }, matryoshka_weights = { 1 } } end, "a list of 2 numbers")
end)

test("sentence encoders: options that are wrong", function()
  local bert = redco.models.from_pretrained(source .. "/tests/cases/bert", { task = "features" })
  local function set(options) return function() bert.set_sentence_pooling(options) end end
  expect_error(set { pooling = "pooler" }, "pooling", "mean", "pooler")
  expect_error(set { prompts = { "query: " } }, "prompts", "by name")
  expect_error(set { prompts = { query = 5 } }, "query", "5")
  expect_error(set { default_prompt_name = "query" }, "none of the prompts")
  expect_error(set { max_seq_length = 0 }, "max_seq_length")
end)

-- Writes the folder of a sentence encoder with these modules behind tests/cases/bert.
local function write_modules(dir, modules, configs)
  os.execute(("rm -rf '%s' && cp -r '%s/tests/cases/bert' '%s'"):format(dir, source, dir))
  local list = { '{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.'
    .. 'Transformer"}' }
  for i, module in ipairs(modules) do
    list[i + 1] = ('{"idx": %d, "name": "%d", "path": "%d_%s", "type": "sentence_transformers.'
      .. 'models.%s"}'):format(i, i, i, module, module)
    os.execute(("mkdir -p '%s/%d_%s'"):format(dir, i, module))
    local file = assert(io.open(("%s/%d_%s/config.json"):format(dir, i, module), "w"))
    file:write(configs[i] or "{}")
    file:close()
  end
  local file = assert(io.open(dir .. "/modules.json", "w"))
  file:write("[", table.concat(list, ", "), "]")
  file:close()
end

local mean = '{"pooling_mode_mean_tokens": true}'

local function dense_config(n_in, n_out, activation, bias)
  return ('{"in_features": %d, "out_features": %d, "bias": %s, "activation_function": '
    .. '"torch.nn.modules.%s"}'):format(n_in, n_out, tostring(bias), activation)
end

test("sentence encoders: linear layers behind the vectors", function()
  local dir, size = testing.folder() .. "/dense", 48
  write_modules(dir, { "Pooling", "Dense", "Dense", "Normalize" }, { mean,
    dense_config(size, 6, "activation.Tanh", true),
    dense_config(6, 4, "linear.Identity", false) })
  local random = torch.Generator(3)
  local function normal(...) return torch.randn({ ... }, { generator = random }) end
  local first, bias, second = normal(6, size), normal(6), normal(4, 6)
  torch.save({ ["linear.weight"] = first, ["linear.bias"] = bias },
    dir .. "/2_Dense/model.safetensors")
  torch.save({ ["linear.weight"] = second }, dir .. "/3_Dense/model.safetensors")
  local bert = redco.models.from_pretrained(dir, { task = "features" })
  local batch = { input_ids = torch.tensor { { 5, 6, 7 }, { 8, 9, 5 } } }
  local x = bert(bert.params, batch, { pooling = "mean" })
  expect_equal(x:size(1), size)
  x = (torch.tanh(x:matmul(first:t()) + bias)):matmul(second:t())
  local expected = x / x:norm(2, { -1 }, true)
  expect_close(bert(bert.params, batch), expected)
  expect_equal(bert(bert.params, batch, { pooling = "none" }):dim(), 3)
  -- They are trained.
  local _, gradients = redco.value_and_grad(function(params)
    return bert(params, batch):select(1, 0):sum()
  end)(bert.params)
  assert(gradients["2_Dense.linear.weight"]:abs():sum():item() > 0)
  assert(gradients["3_Dense.linear.weight"]:abs():sum():item() > 0)
  -- Saved, also after a change of the vectors' length.
  local again_dir = testing.folder() .. "/again"
  bert.set_sentence_pooling { pooling = "mean", normalize = false }
  bert.save_pretrained(again_dir)
  local again = redco.models.from_pretrained(again_dir)
  expect_close(again(again.params, batch), x)
  assert(torch.load(again_dir .. "/3_Dense/model.safetensors")["linear.weight"]:equal(second))
end)

test("sentence encoders: linear layers that are wrong", function()
  local function open(config)
    local dir = testing.folder() .. "/wrong"
    write_modules(dir, { "Pooling", "Dense" }, { mean, config })
    torch.save({ ["linear.weight"] = torch.ones { 6, 48 } }, dir .. "/2_Dense/model.safetensors")
    return function() redco.models.from_pretrained(dir, { task = "features" }) end
  end
  expect_error(open(dense_config(48, 6, "activation.Softmax", false)), "2_Dense/config.json",
    "Softmax", "Tanh")
  expect_error(open(dense_config(48, 7, "linear.Identity", false)), "2_Dense.linear.weight",
    "[6, 48]", "[7, 48]")
  expect_error(open(dense_config(48, 6, "linear.Identity", true)), "2_Dense.linear.bias")
  expect_error(open '{"out_features": 6}', "in_features", "positive whole number")
end)

test("ColBERT: a vector for each token", function()
  local dir = testing.folder() .. "/colbert"
  os.execute(("rm -rf '%s' && cp -r '%s/tests/cases/bert' '%s'"):format(dir, source, dir))
  local bert = redco.models.from_pretrained(dir, { task = "features", config = {
    architectures = { "BertModel" } } })
  local weight = torch.randn({ 6, 48 }, { generator = torch.Generator(4) })
  local params = { ["linear.weight"] = weight }
  for name, leaf in pairs(bert.params) do params["bert." .. name] = leaf end
  torch.save(params, dir .. "/model.safetensors")
  local model = redco.models.from_pretrained(dir, { config = { architectures = { "HF_ColBERT" } } })
  local batch = { input_ids = torch.tensor { { 5, 6, 7 }, { 8, 9, 5 } } }
  local x = bert(bert.params, batch, { pooling = "none" }):matmul(weight:t())
  expect_close(model(model.params, batch), x / x:norm(2, { -1 }, true))
  local again_dir = testing.folder() .. "/colbert_again"
  model.save_pretrained(again_dir)
  local again = redco.models.from_pretrained(again_dir)
  expect_equal(again.config.architectures[1], "HF_ColBERT")
  expect_close(again(again.params, batch), x / x:norm(2, { -1 }, true))
end)

test("scores of rankings", function()
  local scores = torch.tensor { { 0.9, 0.2, 0.5, 0.5 }, { 0.1, 0.8, 0.3, 0.7 } }
  local function near(a, b) assert(math.abs(a - b) < 1e-12, a .. " " .. b) end
  near(metrics.recall_at_k(scores, { { 1, 4 }, 3 }, { k = 2 }), (1 / 2 + 0) / 2)
  near(metrics.mean_reciprocal_rank(scores, { 4, 3 }, { k = 3 }), (1 / 3 + 1 / 3) / 2)
  near(metrics.mean_reciprocal_rank(scores, { 4, 3 }, { k = 2 }), 0)
  near(metrics.ndcg_at_k(scores, { { 1, 3 }, 4 }), (1 + math.log(2) / math.log(3)) / 2)
  expect_error(function() metrics.recall_at_k(scores, { 1 }) end, "a list of 2 entries", "got 1")
  expect_error(function() metrics.recall_at_k(scores, { 0, 1 }) end, "query 1", "from 1 to 4")
  expect_error(function() metrics.ndcg_at_k(scores, { 1, {} }) end, "query 2 has no relevant")
  expect_error(function() metrics.ndcg_at_k(scores, { 1, 2 }, { k = 0 }) end, "k")
  expect_error(function() metrics.ndcg_at_k({}, {}) end, "[queries, documents]")
end)

testing.finish()
