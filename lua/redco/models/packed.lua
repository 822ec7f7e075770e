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

-- Returns a weight of floats rounded to a type. Each process reads and rounds its part alone.
local function rounded(weight, type)
  local block, sizes = block_type(type), weight.shape
  local last = #sizes
  sizes[last], sizes[last + 1] = sizes[last] / block.size, block.size
  local part = native.parameter(sizes, { dtype = weight.dtype }):copy_(weight:reshape(sizes))
  sizes[last + 1] = block.bytes
  return native.parameter(sizes, { dtype = "uint8" })
    :copy_(native.quantize(part, type):squeeze(-2))
end

-- Returns the parameter of a weight in blocks and their type: as the file has them, or rounded to
-- the type `quantize`. Nil if it stays a tensor of floats. options: those of files.load_params.
local function blocks_of(weights, source, kind, options)
  local quantize = options.quantize
  if not kind or quantize == false then return nil end
  if weights.blocks then
    local blocks, type = weights:blocks(source)
    if blocks and not options.low_memory then
      blocks = native.parameter(blocks.shape, { dtype = "uint8" }):copy_(blocks)
    end
    if blocks then return blocks, type end
  end
  if not quantize or kind ~= "linear" then return nil end
  local shape = weights:shape(source)
  if shape[#shape] % block_type(quantize).size == 0 then
    return rounded(weights:tensor(source), quantize), quantize
  end
end

-- Puts blocks of a type into the params.
local function put(params, name, kind, blocks, type, dtype)
  params[name], params[name .. "_type"] = blocks, type
  if kind == "embedding" then params[name .. "_dtype"] = dtype or "float32" end
  if kind == "transposed" then params[name .. "_is_transposed"] = true end
end

--- Replaces new parameters by those of the sizes that packed ones have: of a GGUF file, or of the
--- types of each kind of weights.
function packed.plan(family, config, params, weights, types)
  for name, kind in pairs(packed.kinds(family, config)) do
    local own, sizes = weights and weights:type(name) or types[kind], params[name].shape
    local block, last = own and block_type(own), #sizes
    if kind == "transposed" then sizes[last - 1], sizes[last] = sizes[last], sizes[last - 1] end
    if block and sizes[last] % block.size == 0 then
      sizes[last], sizes[last + 1] = sizes[last] / block.size, block.bytes
      put(params, name, kind, native.parameter(sizes, { dtype = "uint8" }), own)
    end
  end
end

--- Puts a weight into the params if it is packed. Returns whether it is. options: those of
--- files.load_params.
function packed.add(params, name, weights, source, kind, options)
  local blocks, type = blocks_of(weights, source, kind, options)
  if not blocks then return false end
  put(params, name, kind, blocks, type, options.dtype)
  native.set_source(params[name], weights.path, source)
  return true
end

return packed
