--- Linear, embedding, normalisation and the MLP.
local adapter = require "redco.lora.adapter"
local arguments = require "redco.arguments"
local check_params = require "redco.nn.check_params"
local fail = require "redco.fail"
local init = require "redco.nn.initializers"
local native = require "redco.native"
local registry = require "redco.registry"
local torch = require "redco.torch"
local weights = require "redco.quant.weights"
local parameter = native.parameter

local layers = {}

local function define(name, text, f)
  layers[name] = registry.define("redco.nn." .. name, text, f)
end

local linear = arguments("nn.Linear", { bias = true }, { "generator" })
define("Linear", [[
Linear(in_features, out_features, {bias = true, generator = nil}) -> params
Returns the parameters of `linear`: {weight [out, in], bias [out]}, uniform in (-1/sqrt(in),
1/sqrt(in)).]],
function(in_features, out_features, options)
  local o = linear(options)
  local bound = { a = -1 / math.sqrt(in_features), b = 1 / math.sqrt(in_features),
    generator = o.generator }
  local params = { weight = init.uniform_(parameter { out_features, in_features }, bound) }
  if o.bias then params.bias = init.uniform_(parameter { out_features }, bound) end
  return params
end)

local use = arguments("nn.linear", { train = false }, { "rng" })
-- Arguments that do not fit go to torch.linear, whose errors say what to do.
local function product(x, weight, bias)
  local fits = torch.is_tensor(x) and x:dim() > 0 and x.dtype == weight.dtype
    and x:size(-1) == weight:size(-1)
  return (fits and native.linear or torch.linear)(x, weight, bias)
end

define("linear", [[
linear(params, x [..., in], {train = false, rng = nil}) -> [..., out]
Computes x weight^T + bias. If the layer has an adapter (`redco.lora.add`), its output is added; its
dropout needs `train` and `rng`.]], function(params, x, options)
  check_params("linear", "Linear", params, "weight")
  local o = use(options)
  local y = params.weight_type and weights.linear(params, "", x, params.bias)
    or product(x, params.weight, params.bias)
  return params.lora_A and adapter.of_layer(params, "", x, y, o) or y
end)

define("grouped_linear", [[
grouped_linear(x [n, in], numbers [n, k], weights: table) -> [n, k, out]
Multiplies each row by the weights that are chosen for it, as mixtures of experts do: the result for
row i and choice j is weights[numbers[i][j] + 1] x[i]. `weights` is a list of parameters [out, in];
`numbers` are int64, counted from 0; x may have a row for each choice, [n, k, in]. Each weight is
multiplied by its rows only. With n_expert_shards, each process has some of the weights, and rows are
sent to the processes that have theirs.]], function(x, numbers, list)
  return native.grouped_linear(x, numbers, list)
end)

define("silu_mul", [[
silu_mul(gate [...], up [...]) -> [...]
silu(gate) * up, the gated activation of LLaMA's layers (SwiGLU). As one operator it keeps only `gate`
and `up` for backward.]],
native.silu_mul)

local rotary = arguments("nn.apply_rotary_emb", { interleaved = false })
define("apply_rotary_emb", [[
apply_rotary_emb(x [..., size], cos [..., pairs], sin [..., pairs], {interleaved = false}) -> [..., size]
Rotary positions: turns each pair of elements by an angle. Pair i has the elements i and pairs + i of
the last dimension, as in LLaMA, or, if `interleaved`, 2 i and 2 i + 1, as in GPT-J; elements from
2 pairs on stay. cos and sin broadcast to x: of x [batch, heads, length, size] they may be
[length, pairs]. As one operator it reads and writes x once, and keeps only cos and sin for
backward.]],
function(x, cos, sin, options) return native.rotary(x, cos, sin, rotary(options).interleaved) end)

local embedding = arguments("nn.Embedding", { std = 1 }, { "generator" })
define("Embedding", [[
Embedding(num_embeddings, embedding_dim, {std = 1, generator = nil}) -> params
Returns the parameters of `embedding`: {weight [num_embeddings, embedding_dim]}, of the normal
distribution with standard deviation `std`.]],
function(num_embeddings, embedding_dim, options)
  local weight = parameter { num_embeddings, embedding_dim }
  return { weight = init.normal_(weight, embedding(options)) }
end)

define("embedding", [[
embedding(params, ids [...]) -> [..., embedding_dim]
Returns the rows of params.weight at the integers `ids`.]], function(params, ids)
  check_params("embedding", "Embedding", params, "weight")
  if params.lora_A then
    fail "nn.embedding: the parameters have an adapter, which only linear layers can have"
  end
  return adapter.embedded(params, "", weights.rows(params, "", ids), ids)
end)

local layer_norm_params = arguments("nn.LayerNorm", { bias = true })
define("LayerNorm", [[
LayerNorm(normalized_shape, {bias = true}) -> params
Returns the parameters of `layer_norm`: {weight, bias} of the given shape (a number or a list),
filled with 1 and 0.]],
function(normalized_shape, options)
  local params = { weight = torch.ones(normalized_shape) }
  if layer_norm_params(options).bias then params.bias = torch.zeros(normalized_shape) end
  return params
end)

local layer_norm = arguments("nn.layer_norm", { eps = 1e-5 })
define("layer_norm", [[
layer_norm(params, x, {eps = 1e-5}) -> like x
Normalises over the last dimensions, those of params.weight: Ba et al., 2016.]],
function(params, x, options)
  check_params("layer_norm", "LayerNorm", params, "weight")
  return torch.layer_norm(x, params.weight.shape, params.weight, params.bias,
    layer_norm(options).eps)
end)

define("RMSNorm", [[
RMSNorm(normalized_shape) -> params
Returns the parameters of `rms_norm`: {weight} of the given shape (a number or a list), filled with
1.]],
function(normalized_shape)
  return { weight = torch.ones(normalized_shape) }
end)

local rms_norm = arguments("nn.rms_norm", { eps = 1e-6 })
define("rms_norm", [[
rms_norm(params, x, {eps = 1e-6}) -> like x
Computes x / sqrt(mean(x^2) + eps) * weight over the last dimensions: Zhang and Sennrich, 2019.]],
function(params, x, options)
  check_params("rms_norm", "RMSNorm", params, "weight")
  return torch.rms_norm(x, params.weight.shape, params.weight, rms_norm(options).eps)
end)

local mlp_params = arguments("nn.MLP", { bias = true }, { "generator" })
define("MLP", [[
MLP(sizes, {bias = true, generator = nil}) -> params
Returns the parameters of `mlp`, a list of those of linear layers: MLP {784, 256, 10} has two.]],
function(sizes, options)
  local o, params = mlp_params(options), {}
  for i = 1, #sizes - 1 do params[i] = layers.Linear(sizes[i], sizes[i + 1], o) end
  return params
end)

local mlp = arguments("nn.mlp", { activation = torch.relu, train = false }, { "rng" })
define("mlp", [[
mlp(params, x, {activation = torch.relu, train = false, rng = nil}) -> [..., last size]
Applies linear layers with the activation between them. `train` and `rng` as in `nn.linear`.]],
function(params, x, options)
  check_params("mlp", "MLP", params)
  local o = mlp(options)
  for i, layer in ipairs(params) do
    if type(layer) ~= "table" then check_params("mlp", "MLP", params, "weight") end
    if i > 1 then x = o.activation(x) end
    x = layers.linear(layer, x, { train = o.train, rng = o.rng })
  end
  return x
end)

return layers
