--- Layers whose weight may be quantized: beside `X.weight` [out, n, bytes] of uint8 stands the name
--- of its type, `X.weight_type`, and maybe the factors of its inputs, `X.weight_input_scale` [in].
--- `X.weight_is_transposed` marks blocks of a weight that is [..., in, out] as floats. Weights with
--- other names, such as `X.experts.down_proj`, have the same endings.
--- `stem` is "X." in a flat table, and "" where the layer is a table.
local native = require "redco.native"
local torch = require "redco.torch"

local weights = {}

local sizes = {}
for _, type in ipairs(native.block_types) do sizes[type.name] = type.size end

--- Returns the shape of a weight as numbers: [out, in].
function weights.shape(weight, type)
  if not type then return weight.shape end
  local shape = { unpack(weight.shape, 1, weight:dim() - 1) }
  shape[#shape] = shape[#shape] * sizes[type]
  return shape
end

-- If it is not nil, called with the name of a layer, its input and its weight.
local observer = nil

--- Calls f(...). Meanwhile `observe(name, x, weight)` is called for each layer of a flat table with
--- its input.
function weights.observe(observe, f, ...)
  local before = observer
  observer = observe
  local ok, result = pcall(f, ...)
  observer = before
  if not ok then error(result, 0) end
  return result
end

--- Notes the input of a layer for the observer, if there is one.
function weights.note(name, x, weight)
  if observer then observer(name, x, weight) end
end

--- Returns x W^T + bias.
function weights.linear(node, stem, x, bias)
  local weight, type = node[stem .. "weight"], node[stem .. "weight_type"]
  if stem ~= "" then weights.note(stem:sub(1, -2), x, weight) end
  local scale = node[stem .. "weight_input_scale"]
  if scale then x = x * scale:to(x.dtype) end
  if type then return native.quantized_linear(x, weight, type, bias) end
  return native.linear(x, weight, bias)
end

--- Returns the product of each row of x with the weights `numbers` [n, k] of a list, as
--- native.grouped_linear: [n, k, out]. types: their types, a name for each that is quantized.
function weights.grouped(x, numbers, list, types)
  local type = types[1]
  local is_mixed = false
  for i = 1, #list do is_mixed = is_mixed or types[i] ~= type end
  if not is_mixed then return native.grouped_linear(x, numbers, list, type) end
  local dense = {}
  for i, weight in ipairs(list) do
    dense[i] = types[i] and native.dequantize(weight, types[i], x.dtype) or weight
  end
  return native.grouped_linear(x, numbers, dense)
end

--- Returns the rows of W at the integers `ids`. A quantized table names their dtype in
--- `X.weight_dtype`.
function weights.rows(node, stem, ids, padding_idx)
  local weight, type = node[stem .. "weight"], node[stem .. "weight_type"]
  if not type then return torch.embedding(weight, ids, padding_idx or -1) end
  local _, n, bytes = unpack(weight.shape)
  local rows = torch.embedding(weight:view { weight:size(0), n * bytes }, ids)
  local shape = rows.shape
  shape[#shape], shape[#shape + 1] = n, bytes
  return native.dequantize(rows:view(shape), type, node[stem .. "weight_dtype"])
end

--- Returns a weight rounded to numbers of a type. It comes from the file of the weight: checkpoints
--- name it.
function weights.quantized(weight, type, importance)
  local packed, path, name = native.quantize(weight, type, importance), native.source_of(weight)
  if name and name ~= "" then native.set_source(packed, path, name) end
  return packed
end

local endings = { "_type", "_dtype", "_input_scale", "_is_transposed" }

--- The keys of what may stand beside the weight of a layer.
weights.entries = {}
for i, ending in ipairs(endings) do weights.entries[i] = "weight" .. ending end

--- Returns the name of the weight beside which an entry of this name stands, or nil.
function weights.owner(node, name)
  for _, ending in ipairs(endings) do
    local own = name:sub(-#ending) == ending and name:sub(1, -#ending - 1)
    if own and torch.is_tensor(node[own]) then return own end
  end
end

--- Returns a weight as numbers of this dtype, by default float32.
function weights.values(node, name, dtype)
  local weight, type = node[name], node[name .. "_type"]
  if not type then return weight end
  local scale = node[name .. "_input_scale"]
  local values = native.dequantize(weight, type, dtype)
  if scale then values = values * scale:to(values.dtype) end
  return node[name .. "_is_transposed"] and values:transpose(-1, -2):contiguous() or values
end

--- Returns W as numbers of this dtype, by default float32.
function weights.dequantized(node, stem, dtype)
  return weights.values(node, stem .. "weight", dtype)
end

--- Puts numbers of this dtype in place of each quantized weight of a tree.
function weights.dequantize(node, dtype)
  local names = {}
  for key, value in pairs(node) do
    if type(value) == "table" then
      weights.dequantize(value, dtype)
    elseif type(key) == "string" and torch.is_tensor(value) and node[key .. "_type"] then
      names[#names + 1] = key
    end
  end
  for _, name in ipairs(names) do
    node[name] = weights.values(node, name, dtype)
    for _, ending in ipairs(endings) do node[name .. ending] = nil end
  end
end

return weights
