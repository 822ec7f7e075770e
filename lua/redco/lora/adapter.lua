--- Adds the outputs of low-rank adapters to those of their layers.
local dropout = require("redco.nn.dropout").dropout
local fail = require "redco.fail"
local native = require "redco.native"
local torch = require "redco.torch"
local weights = require "redco.quant.weights"

local adapter = {}

--- Raises an error if this layer has an adapter, which its forward function would ignore.
function adapter.refuse(params, name)
  if params[name .. ".lora_A.weight"] then
    fail("%s has an adapter, which only linear layers before the head can have", name)
  end
end

--- Returns the norms of the weights of each output of a weight [out, in], or [in, out] if it is
--- transposed.
function adapter.norms(weight, is_transposed)
  return torch.linalg_vector_norm(weight, 2, { is_transposed and 0 or 1 })
end

--- Returns the weight of a layer with adapter, W + scaling B A, in the adapter's dtype. Weights of
--- embeddings are transposed, [n, size]. `key` is that of a weight that has another than
--- `stem` .. "weight".
function adapter.sum(node, stem, a, b, is_transposed, key)
  local change = b:matmul(a) * node[stem .. "lora_scaling"]
  if is_transposed then change = change:t() end
  return weights.values(node, key or stem .. "weight"):to(a.dtype):add(change)
end

-- Returns the factor of each output of DoRA (arXiv 2402.09353), magnitude / |W + scaling B A|, or
-- nil for a layer without a magnitude. The norms count as constants.
local function factor_of(node, stem, a, b, is_transposed)
  local magnitude = node[stem .. "lora_magnitude_vector"]
  return magnitude and magnitude / torch.no_grad(function()
    return adapter.norms(adapter.sum(node, stem, a, b, is_transposed), is_transposed)
  end)
end

-- Returns y + scaling * B A dropout(x). `product(x, matrix)` multiplies by A and B in the adapter's
-- dtype, which may be wider than the layer's. `factor()` returns the factors of the whole weight's
-- rows, or nil; `base(x, is_dropped)` returns the layer's output without adapter and bias.
local function added(x, y, a, b, given, options, product)
  local p, kept = given.dropout, x
  local is_dropped = p and options.train
  if p then kept = dropout(x, p, { train = options.train, rng = options.rng }) end
  local dtype = torch.is_tensor(a) and a.dtype or a[1].dtype
  local input = kept.dtype == dtype and kept or kept:to(dtype)
  local change = product(product(input, a), b)
  -- Called after the product, which determines the layout of A and B.
  local factor = given.factor()
  if factor then
    change = change * factor * given.scaling + given.base(kept, is_dropped) * (factor - 1)
  end
  if change.dtype ~= y.dtype then change = change:to(y.dtype) end
  return y:add(change, { alpha = factor and 1 or given.scaling })
end

--- Returns y, the output for x of a layer that has an adapter, plus that of the adapter. The layer
--- is in the table `node`, where the names of its entries begin with `stem`: "X." in a flat table,
--- and "" where the layer is a table. `bias`: of y, by default the layer's.
function adapter.of_layer(node, stem, x, y, options, bias)
  local a = stem == "" and node.lora_A.weight or node[stem .. "lora_A.weight"]
  local b = stem == "" and node.lora_B.weight or node[stem .. "lora_B.weight"]
  local is_transposed = node[stem .. "lora_fan_in_fan_out"]
  bias = bias or node[stem .. "bias"]
  local function base(kept, is_dropped)
    if not is_dropped then return bias and y - bias or y end
    if is_transposed then return native.linear(kept, node[stem .. "weight"]:t()) end
    return weights.linear(node, stem, kept)
  end
  return added(x, y, a, b, {
    scaling = node[stem .. "lora_scaling"], dropout = node[stem .. "lora_dropout"], base = base,
    factor = function() return factor_of(node, stem, a, b, is_transposed) end,
  }, options, native.linear)
end

--- Returns y, the output for x of the layer `name` of a flat table, plus that of its adapter, if
--- any.
function adapter.by_name(params, name, x, y, options, bias)
  if not params[name .. ".lora_A.weight"] then return y end
  return adapter.of_layer(params, name .. ".", x, y, options, bias)
end

--- Returns y, the embeddings of `ids`, plus those of the adapter, if there is one.
function adapter.embedded(node, stem, y, ids)
  local a, b = node[stem .. "lora_embedding_A"], node[stem .. "lora_embedding_B"]
  if not a then return y end
  local change = native.linear(torch.embedding(a:t(), ids), b) * node[stem .. "lora_scaling"]
  local factor = factor_of(node, stem, a, b, true)
  if factor then change = change * factor + y * (factor - 1) end
  return y + change:to(y.dtype)
end

-- Returns the matrices of the layers that have an adapter, and zeros for those that have none.
-- The matrices include `scaling` if it differs from that of the layer `first`.
local function matrices_of(params, names, first)
  local a, b = {}, {}
  for i, name in ipairs(names) do
    local own = params[name .. ".lora_A.weight"] and name or first
    a[i], b[i] = params[own .. ".lora_A.weight"], params[own .. ".lora_B.weight"]
    local factor = own == name
      and params[name .. ".lora_scaling"] / params[first .. ".lora_scaling"] or 0
    if factor ~= 1 then b[i] = b[i] * factor end
  end
  return a, b
end

-- Returns the factors of the outputs of layers of which some have a magnitude: [layers, out].
local function factors_of(params, names, like)
  local factors = {}
  for i, name in ipairs(names) do
    local stem = name .. "."
    factors[i] = factor_of(params, stem, params[stem .. "lora_A.weight"],
      params[stem .. "lora_B.weight"], false) or torch.ones_like(like)
  end
  return torch.stack(factors)
end

--- The same for layers without bias of which `numbers` [n, k] choose k for each row of x, as in
--- native.grouped_linear: y is [n, k, out].
function adapter.grouped(params, names, x, y, numbers, options)
  local first, magnitude
  for _, name in ipairs(names) do
    first = first or params[name .. ".lora_A.weight"] and name
    magnitude = magnitude or params[name .. ".lora_magnitude_vector"]
  end
  if not first then return y end
  local a, b = matrices_of(params, names, first)
  local function product(z, matrices) return native.grouped_linear(z, numbers, matrices) end
  local function base(kept, is_dropped)
    if not is_dropped then return y end
    local matrices, types = {}, {}
    for i, name in ipairs(names) do
      matrices[i], types[i] = params[name .. ".weight"], params[name .. ".weight_type"]
    end
    return weights.grouped(kept, numbers, matrices, types)
  end
  return added(x, y, a, b, {
    scaling = params[first .. ".lora_scaling"], dropout = params[first .. ".lora_dropout"],
    base = base,
    factor = function()
      return magnitude and torch.embedding(factors_of(params, names, magnitude), numbers)
    end,
  }, options, product)
end

--- Returns y, the output for x of the weights `numbers` [n, k] of a stack, the parameter `key`,
--- plus that of its adapter, if any. `is_transposed`: the stack is [experts, in, out].
function adapter.stacked(params, key, x, y, numbers, is_transposed, options)
  local stem = key:find "%f[%w_]weight$" and key:sub(1, -7) or key .. "."
  local a, b = params[stem .. "lora_A.weight"], params[stem .. "lora_B.weight"]
  if not a then return y end
  if is_transposed then a, b = b:transpose(1, 2), a:transpose(1, 2) end
  local function product(z, matrices) return native.grouped_linear(z, numbers, matrices) end
  return added(x, y, a:unbind(0), b:unbind(0),
    { scaling = params[stem .. "lora_scaling"], factor = function() end }, options, product)
end

return adapter
