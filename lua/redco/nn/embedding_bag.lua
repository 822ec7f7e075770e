--- Sums, means and maxima of embeddings.
local arguments = require "redco.arguments"
local check_params = require "redco.nn.check_params"
local fail = require "redco.fail"
local layers = require "redco.nn.layers"
local registry = require "redco.registry"

local bags = {}

bags.EmbeddingBag = registry.define("redco.nn.EmbeddingBag", [[
EmbeddingBag(num_embeddings, embedding_dim, {std = 1, generator = nil}) -> params
Returns the parameters of `embedding_bag`, which are those of `Embedding`.]],
function(num_embeddings, embedding_dim, options)
  return layers.Embedding(num_embeddings, embedding_dim, options)
end)

local modes = {}

function modes.sum(rows, kept) return (rows * kept):sum(-2) end

function modes.mean(rows, kept) return modes.sum(rows, kept) / kept:sum(-2):clamp(1) end

-- A bag without ids has zeros.
function modes.max(rows, kept)
  local is_kept = kept:gt(0)
  return rows:masked_fill(is_kept:logical_not(), -math.huge):amax { -2 }
    :masked_fill(is_kept:any(-2):logical_not(), 0)
end

local use = arguments("nn.embedding_bag", { mode = "mean" },
  { "padding_idx", "per_sample_weights" })
bags.embedding_bag = registry.define("redco.nn.embedding_bag", [[
embedding_bag(params, ids [..., n], {mode = "mean", padding_idx = nil, per_sample_weights [..., n] = nil}) -> [..., embedding_dim]
Returns the "sum", the "mean" or the "max" of the rows of params.weight at the n ids of each bag.
Pad shorter bags with padding_idx, which does not count; an empty bag gives zeros. With mode =
"sum", per_sample_weights multiplies the rows.]], function(params, ids, options)
  check_params("embedding_bag", "EmbeddingBag", params, "weight")
  local o = use(options)
  local reduce = type(o.mode) == "string" and modes[o.mode]
    or fail("nn.embedding_bag: mode: expected \"sum\", \"mean\" or \"max\", got %s",
      o.mode)
  local weights = o.per_sample_weights
  if weights and o.mode ~= "sum" then
    fail("nn.embedding_bag: per_sample_weights is for mode = \"sum\", not \"%s\"", o.mode)
  end
  if weights and weights.shape ~= ids.shape then
    fail("nn.embedding_bag: per_sample_weights has shape [%s], ids has [%s]",
      table.concat(weights.shape, ", "), table.concat(ids.shape, ", "))
  end
  local rows = layers.embedding(params, ids)
  local kept = ids:ne(o.padding_idx or -1):unsqueeze(-1):to(rows.dtype)
  return reduce(weights and rows * weights:unsqueeze(-1) or rows, kept)
end)

return bags
