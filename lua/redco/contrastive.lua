--- redco.contrastive: losses of vectors that a loss_fn calls. Each compares the examples of the
--- whole batch: of all processes, and of all micro-batches.
local arguments = require "redco.arguments"
local blocks = require "redco.models.layers.blocks"
local fail = require "redco.fail"
local native = require "redco.native"
local registry = require "redco.registry"
local strict = require "redco.strict"
local torch = require "redco.torch"

local contrastive = {}

local function normalised(x) return x / x:norm(2, { -1 }, true):clamp(1e-12) end

-- Checks a list of at least `least` tensors [B, size] with one size. Gathers them over all
-- micro-batches, in float32 at least.
local function gathered(where, vectors, least)
  if type(vectors) ~= "table" or #vectors < least then
    fail("%s: vectors: expected a list of %d tensors [batch, size] or more, got %s", where, least,
      type(vectors) == "table" and #vectors or native.describe(vectors))
  end
  local all = {}
  for i, x in ipairs(vectors) do
    if not torch.is_tensor(x) or x:dim() ~= 2 or i > 1 and x:size(1) ~= vectors[1]:size(1) then
      fail("%s: vectors: entry %d: expected a tensor [batch, %s], got %s", where, i,
        i > 1 and vectors[1]:size(1) or "size", native.describe(x))
    end
    if i > 1 and x:size(0) ~= vectors[1]:size(0) then
      fail("%s: vectors: entry %d has %d rows, and the anchors have %d", where, i, x:size(0),
        vectors[1]:size(0))
    end
    all[i] = native.gather_micro_batches(x:to(blocks.wide_dtype(x)))
  end
  return all
end

local similarities = {
  cos_sim = function(x, y) return normalised(x):matmul(normalised(y):t()) end,
  dot_score = function(x, y) return x:matmul(y:t()) end,
}

local function similarity_of(where, name)
  return similarities[name] or fail("%s: similarity_fct: expected \"cos_sim\" or \"dot_score\", "
    .. "got %s", where, native.describe(name))
end

-- Returns the mean loss of rows whose right column has their own number.
local function ranking(scores, n)
  return scores:logsumexp({ 1 }):mean() - scores:narrow(1, 0, n):diagonal():mean()
end

-- Each function returns a loss from gathered vectors and checked options.
local of_gathered = {}

local function count_of(x) return torch.full({}, x:size(0), { device = x.device }) end

function of_gathered.multiple_negatives_ranking(vectors, o, where)
  local n = vectors[1]:size(0)
  local candidates = #vectors == 2 and vectors[2]
    or torch.cat({ unpack(vectors, 2) }, 0)
  local scores = similarity_of(where, o.similarity_fct)(vectors[1], candidates) * o.scale
  return ranking(scores, n), count_of(vectors[1])
end

function of_gathered.multiple_negatives_symmetric_ranking(vectors, o, where)
  local n = vectors[1]:size(0)
  local similarity = similarity_of(where, o.similarity_fct)
  local candidates = #vectors == 2 and vectors[2]
    or torch.cat({ unpack(vectors, 2) }, 0)
  local scores = similarity(vectors[1], candidates) * o.scale
  local backward = scores:narrow(1, 0, n):t()
  return (ranking(scores, n) + ranking(backward, n)) / 2, count_of(vectors[1])
end

-- The logarithm of 1 + the sum of exp(s_i - s_j) over pairs with label i below label j.
function of_gathered.cosent(vectors, o)
  local labels = o.labels
  local scores = (normalised(vectors[1]) * normalised(vectors[2])):sum({ 1 }) * o.scale
  local differences = scores:unsqueeze(1) - scores:unsqueeze(0)
  local is_wrong = labels:unsqueeze(1):lt(labels:unsqueeze(0))
  local kept = differences:masked_fill(is_wrong:logical_not(), -1e12):reshape { -1 }
  local zero = torch.zeros({ 1 }, { dtype = kept.dtype, device = kept.device })
  return torch.cat({ zero, kept }, 0):logsumexp { 0 }, count_of(vectors[1])
end

local ranking_defaults = { scale = 20, similarity_fct = "cos_sim" }
local options = {
  multiple_negatives_ranking = arguments("contrastive.multiple_negatives_ranking",
    ranking_defaults),
  multiple_negatives_symmetric_ranking = arguments(
    "contrastive.multiple_negatives_symmetric_ranking", ranking_defaults),
  cosent = arguments("contrastive.cosent", { scale = 20 }, { "labels" }),
}

-- Returns the options of a loss; labels are those of all micro-batches.
local function read(name, given, vectors)
  local where = "contrastive." .. name
  local o = options[name](given)
  if name == "cosent" then
    if not torch.is_tensor(o.labels) or o.labels:dim() ~= 1
      or o.labels:size(0) ~= vectors[1]:size(0) then
      fail("%s: labels: expected a tensor [%d], got %s", where, vectors[1]:size(0),
        native.describe(o.labels))
    end
    o.labels = native.gather_micro_batches(o.labels)
  end
  return o
end

local function new_loss(name)
  local where = "contrastive." .. name
  return function(vectors, given)
    local all = gathered(where, vectors, 2)
    return of_gathered[name](all, read(name, given, vectors), where)
  end
end

contrastive.multiple_negatives_ranking =
registry.define("redco.contrastive.multiple_negatives_ranking", [[
multiple_negatives_ranking(vectors: list, {scale = 20, similarity_fct = "cos_sim"}) -> loss, count
Returns sentence-transformers' MultipleNegativesRankingLoss, also called InfoNCE: the mean
cross-entropy of each anchor's similarities, times `scale`, with its own positive as the class.
`vectors` are tensors [B, size]: {anchors, positives} or {anchors, positives, negatives, ...}, in which row i belongs to
example i. The candidates of an anchor are the positives and negatives of all examples: those of all
processes and micro-batches. `count` is the number of anchors.
  similarity_fct: "cos_sim" or "dot_score"]], new_loss "multiple_negatives_ranking")

contrastive.multiple_negatives_symmetric_ranking =
registry.define("redco.contrastive.multiple_negatives_symmetric_ranking", [[
multiple_negatives_symmetric_ranking(vectors: list, {scale = 20, similarity_fct = "cos_sim"}) -> loss, count
Returns the mean of `multiple_negatives_ranking` and of the cross-entropy of each positive's
similarities to all anchors, as sentence-transformers' MultipleNegativesSymmetricRankingLoss.]],
new_loss "multiple_negatives_symmetric_ranking")

contrastive.cosent = registry.define("redco.contrastive.cosent", [[
cosent(vectors: list, {labels: Tensor [B], scale = 20}) -> loss, count
Returns sentence-transformers' CoSENTLoss for pairs of texts with scores, `labels`: the cosine
similarity of a pair with a higher score should be the higher one. It compares all pairs of the whole
batch.]], new_loss "cosent")

local matryoshka = arguments("contrastive.matryoshka", {},
  { "loss", "matryoshka_dims", "matryoshka_weights", "options" })
local where = "contrastive.matryoshka"

local function check_matryoshka(o, size)
  if not of_gathered[o.loss] then
    fail("%s: loss: expected the name of a loss of redco.contrastive, such as \"cosent\", got %s",
      where, native.describe(o.loss))
  end
  local dims = o.matryoshka_dims
  if type(dims) ~= "table" or #dims == 0 then
    fail("%s: matryoshka_dims: expected a list of sizes, got %s", where, native.describe(dims))
  end
  for i, dim in ipairs(dims) do
    if type(dim) ~= "number" or dim < 1 or dim % 1 ~= 0 or dim > size then
      fail("%s: matryoshka_dims: entry %d: expected a size from 1 to %d, got %s", where, i, size,
        native.describe(dim))
    end
  end
  local weights = o.matryoshka_weights
  if weights and (type(weights) ~= "table" or #weights ~= #dims) then
    fail("%s: matryoshka_weights: expected a list of %d numbers, got %s", where, #dims,
      native.describe(weights))
  end
end

contrastive.matryoshka = registry.define("redco.contrastive.matryoshka", [[
matryoshka(vectors: list, {loss: string, matryoshka_dims: list of integers,
  matryoshka_weights: list of numbers = nil, options: table = nil}) -> loss, count
Returns the sum of another loss of `redco.contrastive` over vectors of several sizes, the first
numbers of each, so that shortened vectors are useful too: sentence-transformers' MatryoshkaLoss.
  loss: "multiple_negatives_ranking", "multiple_negatives_symmetric_ranking" or "cosent"
  matryoshka_dims: the sizes
  matryoshka_weights: a factor for each; by default 1
  options: the options of that loss]], function(vectors, given)
  local o = matryoshka(given)
  local all = gathered(where, vectors, 2)
  check_matryoshka(o, all[1]:size(1))
  local own, sum, count = read(o.loss, o.options, vectors), nil, nil
  for i, dim in ipairs(o.matryoshka_dims) do
    local short = {}
    for j, x in ipairs(all) do short[j] = normalised(x:narrow(1, 0, dim)) end
    local loss, n = of_gathered[o.loss](short, own, where)
    loss = loss * (o.matryoshka_weights and o.matryoshka_weights[i] or 1)
    sum, count = sum and sum + loss or loss, n
  end
  return sum, count
end)

return registry.define("redco.contrastive", [[
redco.contrastive
Losses that compare vectors, for embedding models. Names, options and numbers are those of
sentence-transformers. Each is one loss of the whole batch, however processes and micro-batches
split it (`redco.gather_micro_batches`).]], strict("redco.contrastive", contrastive))
