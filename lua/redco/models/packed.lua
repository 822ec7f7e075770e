--- Weights that are read packed: which they are, and how they stand in the params.
local fail = require "redco.fail"
local listed = require "redco.models.listed"
local native = require "redco.native"
local warn = require "redco.warn"

local packed = {}

-- Returns a type of quantized numbers.
local function block_type(type)
  local names = {}
  for i, known in ipairs(native.block_types) do
    if known.name == type then return known end
    names[i] = known.name
  end
  fail("models.from_pretrained: quantize: expected false or one of %s, got %s",
    table.concat(names, ", "), type)
end

--- Names weights that stay floats because blocks of the type do not divide their inputs. Raises an
--- error if all do.
function packed.tell_unpacked(family, params, kinds, quantize)
  local names, is_any = {}, false
  for name, kind in pairs(kinds) do
    local is_packed = params[name .. "_type"] ~= nil
    is_any = is_any or is_packed
    if kind == "linear" and not is_packed then names[#names + 1] = name end
  end
  if not is_any then
    fail("models.from_pretrained: quantize = %s: the %s has no weight that can be quantized so",
      quantize, family.architecture)
  end
  if #names > 0 then
    table.sort(names)
    warn("%s has blocks of %d elements, which do not divide the inputs of these weights; they stay "
      .. "floats: %s", quantize, block_type(quantize).size, listed(names, 4))
  end
end

-- Weights of linear layers that are also multiplied in other ways, and so stay floats: routers and
-- latents.
local is_otherwise = { "%.gate%.weight$", "%.router%.", "%.kv_b_proj%.weight$" }

--- Returns whether a weight of a linear layer may be quantized.
function packed.may_be(name)
  for _, pattern in ipairs(is_otherwise) do
    if name:find(pattern) then return false end
  end
  return true
end

-- Returns the kind of a weight that may be quantized, or nil. `head` is the name of the last
-- layer's weight.
local function kind_of(name, kind, head)
  if not packed.may_be(name) then return nil end
  return kind == "linear" and name == head and "head" or kind
end

--- Returns the kinds of the weights of a model that may be quantized, {[name] = kind}.
function packed.kinds(family, config)
  local kinds, head = {}, family.head and family.head(config)
  family.add_parameters(config, function(name, _, _, kind)
    kinds[name] = kind_of(name, kind, head)
  end)
  return kinds
end

-- Returns the blocks of a weight and their type: as the file has them, or rounded to the type
-- `quantize`. Nil if it stays a tensor of floats.
local function blocks_of(weights, source, kind, quantize)
  if not kind or quantize == false then return nil end
  if weights.blocks then
    local blocks, type = weights:blocks(source)
    if blocks then return blocks, type end
  end
  if not quantize or kind ~= "linear" then return nil end
  local shape = weights:shape(source)
  if shape[#shape] % block_type(quantize).size == 0 then
    return native.quantize(weights:tensor(source), quantize), quantize
  end
end

--- Replaces new parameters by those of the sizes that packed ones have: of a GGUF file, or of a
--- type, which may be nil.
function packed.plan(family, config, params, weights, type)
  for name, kind in pairs(packed.kinds(family, config)) do
    local own, sizes = weights and weights:type(name) or kind == "linear" and type,
      params[name].shape
    local block = own and block_type(own)
    if block and sizes[#sizes] % block.size == 0 then
      sizes[#sizes], sizes[#sizes + 1] = sizes[#sizes] / block.size, block.bytes
      params[name] = native.parameter(sizes, { dtype = "uint8" })
      params[name .. "_type"] = own
      if kind == "embedding" then params[name .. "_dtype"] = "float32" end
    end
  end
end

--- Puts a weight into the params if it is packed. Returns whether it is. options: those of
--- files.load_params.
function packed.add(params, name, weights, source, kind, options)
  local blocks, type = blocks_of(weights, source, kind, options.quantize)
  if not blocks then return false end
  params[name] = options.low_memory and blocks
    or native.parameter(blocks.shape, { dtype = "uint8" }):copy_(blocks)
  params[name .. "_type"] = type
  if kind == "embedding" then params[name .. "_dtype"] = options.dtype or "float32" end
  native.set_source(params[name], weights.path, source)
  return true
end

return packed
