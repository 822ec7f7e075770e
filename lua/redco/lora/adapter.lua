--- Adds the outputs of low-rank adapters to those of their layers.
local dropout = require("redco.nn.dropout").dropout
local fail = require "redco.fail"
local native = require "redco.native"

local adapter = {}

--- Raises an error if this layer has an adapter, which its forward function would ignore.
function adapter.refuse(params, name)
  if params[name .. ".lora_A.weight"] then
    fail("%s has an adapter, which only linear layers before the head can have", name)
  end
end

-- Returns y + scaling * B A dropout(x). The product is computed in the adapter's dtype, which may
-- be wider than the layer's.
local function added(x, y, a, b, scaling, p, options)
  if p then x = dropout(x, p, { train = options.train, rng = options.rng }) end
  if x.dtype ~= a.dtype then x = x:to(a.dtype) end
  local change = native.linear(native.linear(x, a), b)
  if change.dtype ~= y.dtype then change = change:to(y.dtype) end
  return y:add(change, { alpha = scaling })
end

--- Returns y, the output for x of the layer `name` of a flat table, plus that of its adapter, if
--- any.
function adapter.by_name(params, name, x, y, options)
  local a = params[name .. ".lora_A.weight"]
  if not a then return y end
  return added(x, y, a, params[name .. ".lora_B.weight"], params[name .. ".lora_scaling"],
    params[name .. ".lora_dropout"], options)
end

--- The same for the parameters of one layer that has an adapter.
function adapter.of_layer(layer, x, y, options)
  return added(x, y, layer.lora_A.weight, layer.lora_B.weight, layer.lora_scaling,
    layer.lora_dropout, options)
end

return adapter
