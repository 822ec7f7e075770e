--- Adds the outputs of low-rank adapters to those of their layers.
local dropout = require("redco.nn.dropout").dropout
local fail = require "redco.fail"
local native = require "redco.native"
local torch = require "redco.torch"

local adapter = {}

--- Raises an error if this layer has an adapter, which its forward function would ignore.
function adapter.refuse(params, name)
  if params[name .. ".lora_A.weight"] then
    fail("%s has an adapter, which only linear layers before the head can have", name)
  end
end

-- Returns y + scaling * B A dropout(x); `product(x, matrix)` multiplies by A and B. It is computed
-- in the adapter's dtype, which may be wider than the layer's.
local function added(x, y, a, b, given, options, product)
  local p = given.lora_dropout
  if p then x = dropout(x, p, { train = options.train, rng = options.rng }) end
  if x.dtype ~= given.dtype then x = x:to(given.dtype) end
  local change = product(product(x, a), b)
  if change.dtype ~= y.dtype then change = change:to(y.dtype) end
  return y:add(change, { alpha = given.lora_scaling })
end

--- Returns y, the output for x of the layer `name` of a flat table, plus that of its adapter, if
--- any.
function adapter.by_name(params, name, x, y, options)
  local a = params[name .. ".lora_A.weight"]
  if not a then return y end
  return added(x, y, a, params[name .. ".lora_B.weight"], {
    dtype = a.dtype, lora_scaling = params[name .. ".lora_scaling"],
    lora_dropout = params[name .. ".lora_dropout"],
  }, options, native.linear)
end

--- Returns y, the embeddings of `ids`, plus those of the adapter of A [r, n] and B [size, r].
function adapter.embedded(y, ids, a, b, scaling)
  local change = native.linear(torch.embedding(a:t(), ids), b)
  if change.dtype ~= y.dtype then change = change:to(y.dtype) end
  return y:add(change, { alpha = scaling })
end

-- Returns the matrices of the layers that have an adapter, and zeros for those that have none.
-- `scaling` is included where it differs from that of the layer `first`.
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

--- The same for layers of which `numbers` [n, k] choose k for each row of x, as in
--- native.grouped_linear: y is [n, k, out].
function adapter.grouped(params, names, x, y, numbers, options)
  local first
  for _, name in ipairs(names) do
    first = first or params[name .. ".lora_A.weight"] and name
  end
  if not first then return y end
  local a, b = matrices_of(params, names, first)
  return added(x, y, a, b, {
    dtype = a[1].dtype, lora_scaling = params[first .. ".lora_scaling"],
    lora_dropout = params[first .. ".lora_dropout"],
  }, options, function(z, matrices) return native.grouped_linear(z, numbers, matrices) end)
end

--- The same for the parameters of one layer that has an adapter.
function adapter.of_layer(layer, x, y, options)
  local a = layer.lora_A.weight
  return added(x, y, a, layer.lora_B.weight, {
    dtype = a.dtype, lora_scaling = layer.lora_scaling, lora_dropout = layer.lora_dropout,
  }, options, native.linear)
end

return adapter
