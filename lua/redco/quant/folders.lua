--- Folders of quantized models: `quantization_config` names a method, and several tensors stand for
--- the weight X.weight. They are read as blocks of redco.quant.types.
local blocks = require "redco.quant.blocks"
local fail = require "redco.fail"
local mxfp4 = require "redco.quant.mxfp4"
local native = require "redco.native"
local torch = require "redco.torch"
local warn = require "redco.warn"

local size, joined, for_blocks = blocks.size, blocks.joined, blocks.for_blocks

-- Numbers of one byte [out, in].
local function of_bytes(q, scales, where)
  local n = blocks.count(q:size(1), where)
  return joined(for_blocks(scales, n, where), nil, q:view "uint8":view { q:size(0), n, size })
end

-- Splits integers of 32 bits, [..., n] -> [..., 8 n] of 4 bits, the lowest bits first.
local function nibbles(t)
  local bytes = blocks.bytes_of(t):flatten(-2)
  return torch.stack({ bytes:bitwise_and(15), bytes:bitwise_right_shift(4) }, -1):flatten(-2)
end

-- The scales of a matrix [out, in] that has one for each group of inputs, for each row, or one for
-- all: [out, groups].
local function of_rows(scales, shape)
  if scales:numel() > shape[1] then return scales end
  if scales:numel() == 1 then return scales:view { 1, 1 }:expand { shape[1], 1 } end
  return scales:view { shape[1], 1 }
end

-- The scales of a matrix [out, in] that has one for each tile: [out, blocks]. The last tiles may be
-- cut.
local function of_tiles(scales, shape, tile, where)
  local n = blocks.count(shape[2], where)
  if type(tile) ~= "table" or tile[2] % size ~= 0 then
    fail("%s: quantization_config needs weight_block_size, with columns that are multiples of %d",
      where, size)
  end
  return scales:repeat_interleave(tile[1], 0):narrow(0, 0, shape[1])
    :repeat_interleave(tile[2] / size, 1):narrow(1, 0, n)
end

-- A form stores the numbers of X.weight in X.KEY, beside tensors of the endings `others`.
-- `read(get, where)` returns blocks of `type`. get(ending) is the tensor X.ending, which must
-- be there; get.optional(ending) may be nil.

-- https://github.com/bitsandbytes-foundation/bitsandbytes: QuantState.as_dict of functional.py.
local function four_bits(kind)
  local state_key = "weight.quant_state.bitsandbytes__" .. kind
  return {
    type = kind, key = "weight",
    others = { state_key, "weight.absmax", "weight.quant_map", "weight.nested_absmax",
      "weight.nested_quant_map" },
    read = function(get, where)
      local state = native.json_decode(where, string.char(unpack(get(state_key):tolist())))
      local n_out, n_in = unpack(state.shape)
      if state.blocksize ~= size then
        fail("%s: blocks of %s numbers are not read, only of %d", where, state.blocksize, size)
      end
      local n, scales = blocks.count(n_in, where), get "weight.absmax"
      if state.nested_blocksize then
        local outer = get "weight.nested_absmax":repeat_interleave(state.nested_blocksize)
        scales = get "weight.nested_quant_map":index_select(0, scales:long())
          * outer:narrow(0, 0, scales:size(0)) + state.nested_offset
      end
      local packed = get "weight":contiguous():view "uint8":view { n_out, n, size / 2 }
      return joined(scales:view { n_out, n }, nil, packed)
    end,
  }
end

local eight_bits = {
  type = "int8", key = "weight", others = { "SCB", "weight_format" },
  read = function(get, where)
    return of_bytes(get "weight", get "SCB":float():unsqueeze(1) / 127, where)
  end,
}

local function float8(config)
  return {
    type = "fp8", key = "weight", others = { "weight_scale_inv", "weight_scale", "input_scale" },
    read = function(get, where)
      local weight, tiles = get "weight", get.optional "weight_scale_inv"
      return of_bytes(weight, tiles
        and of_tiles(tiles:float(), weight.shape, config.weight_block_size, where)
        or of_rows(get "weight_scale":float(), weight.shape), where)
    end,
  }
end

-- https://github.com/AutoGPTQ/AutoGPTQ: qlinear_cuda_old.py. The zeros of its first version are
-- stored less 1.
local function gptq(config)
  return {
    type = "int4", key = "qweight", others = { "qzeros", "scales", "g_idx" },
    read = function(get, where)
      local q = nibbles(get "qweight":t())
      local scales, groups = get "scales":t(), get.optional "g_idx"
      local expected = torch.arange(q:size(1)):div(q:size(1) / scales:size(1),
        { rounding_mode = "floor" })
      if groups and not groups:long():equal(expected) then
        fail("%s: groups in the order of activations (desc_act) are not read", where)
      end
      local first = config.checkpoint_format == "gptq_v2" and 0 or 1
      return blocks.of_nibbles(q, nibbles(get "qzeros"):t() + first, scales, where)
    end,
  }
end

-- https://github.com/casper-hansen/AutoAWQ: packing_utils.py. Outputs are interleaved.
local awq = {
  type = "int4", key = "qweight", others = { "qzeros", "scales" },
  read = function(get, where)
    local function in_order(t)
      local order = torch.tensor { 0, 4, 1, 5, 2, 6, 3, 7 }
      return nibbles(t):view { t:size(0), -1, 8 }:index_select(-1, order):flatten(1):t()
    end
    local q, zeros = in_order(get "qweight"), in_order(get "qzeros")
    return blocks.of_nibbles(q, zeros, get "scales":t(), where)
  end,
}

-- https://github.com/neuralmagic/compressed-tensors: pack_to_int32 stores numbers plus 8.
local packed_numbers = {
  type = "int4", key = "weight_packed",
  others = { "weight_scale", "weight_zero_point", "weight_shape", "weight_g_idx" },
  read = function(get, where)
    local shape, scales = get "weight_shape":tolist(), get "weight_scale"
    if get.optional "weight_g_idx" then
      fail("%s: groups in the order of activations are not read", where)
    end
    local zeros = get.optional "weight_zero_point"
    zeros = zeros and nibbles(zeros:t()):t():narrow(0, 0, shape[1])
      or torch.full_like(scales, 8, { dtype = "uint8" })
    local q = nibbles(get "weight_packed"):narrow(1, 0, shape[2])
    return blocks.of_nibbles(q, zeros, scales, where)
  end,
}
local whole_numbers = {
  type = "int8", key = "weight", others = { "weight_scale", "weight_zero_point", "input_scale" },
  read = function(get, where)
    local weight = get "weight"
    return of_bytes(weight, of_rows(get "weight_scale":float(), weight.shape), where)
  end,
}

local function refuse(where, what)
  fail("%s: quantization_config: %s is not read", where, what)
end

-- The forms by `format` of compressed-tensors.
local formats = { ["pack-quantized"] = packed_numbers, ["int-quantized"] = whole_numbers,
  ["float-quantized"] = float8 {}, ["naive-quantized"] = float8 {} }

-- Functions of the configuration and the folder that return the form of weights. A form with
-- `open(weights)` has only experts in blocks.
local methods = {
  bitsandbytes = function(config, where)
    if config.load_in_8bit then return eight_bits end
    local kind = config.bnb_4bit_quant_type or "fp4"
    return (kind == "nf4" or kind == "fp4") and four_bits(kind)
      or refuse(where, "bnb_4bit_quant_type = " .. tostring(kind))
  end,
  gptq = function(config, where)
    if config.bits ~= 4 then refuse(where, ("gptq with %s bits"):format(config.bits)) end
    return gptq(config)
  end,
  awq = function(config, where)
    if config.bits ~= 4 or config.version and config.version:lower() ~= "gemm" then
      refuse(where, ("awq with %s bits and version %s"):format(config.bits, config.version))
    end
    return awq
  end,
  fp8 = float8,
  mxfp4 = function() return { type = "mxfp4", open = mxfp4 } end,
  ["compressed-tensors"] = function(config, where)
    local form = formats[config.format]
    for _, group in pairs(config.config_groups or {}) do
      local w = group.weights or {}
      local is_wide = w.num_bits == 8 and form ~= packed_numbers
      if not form or not (is_wide or w.num_bits == 4 and form == packed_numbers)
        or w.actorder == "group" then
        refuse(where, ("the format %s with %s bits"):format(config.format, w.num_bits))
      end
      local strategies = { channel = true, group = true, tensor = true }
      if form ~= packed_numbers and not strategies[w.strategy] then
        refuse(where, ("the format %s by %s"):format(config.format, w.strategy))
      end
      if w.symmetric == false and form == whole_numbers then
        refuse(where, "a format with zeros of 8 bits")
      end
      if group.input_activations then
        warn("%s: quantization_config rounds activations, too, which stay floats here", where)
      end
    end
    return form or refuse(where, "the format " .. tostring(config.format))
  end,
}

local Weights = {}
Weights.__index = Weights

-- Returns the part of a name before an ending; nil if it has another.
local function stem_of(name, ending)
  if name:sub(-#ending - 1) == "." .. ending then return name:sub(1, -#ending - 2) end
end

-- Whether several tensors stand for the weight of a layer, which may also be floats.
function Weights:is_packed(stem)
  for _, ending in ipairs(self.has[stem .. "." .. self.form.key] and self.form.others or {}) do
    if self.has[stem .. "." .. ending] then return true end
  end
  return false
end

-- Returns the layer of whose weight a tensor is a part, or nil.
function Weights:owner(name)
  for _, ending in ipairs { self.form.key, unpack(self.form.others) } do
    local stem = stem_of(name, ending)
    if stem and self:is_packed(stem) then return stem end
  end
end

-- Has the fields and methods of native.open_weights, with X.weight for the tensors of a weight.
local function new_weights(inner, form)
  local self = setmetatable({ path = inner.path, inner = inner, form = form, names = {},
    has = {} }, Weights)
  for _, name in ipairs(inner:keys()) do self.has[name] = true end
  for _, name in ipairs(inner:keys()) do
    local stem = self:owner(name)
    if not stem then
      self.names[#self.names + 1] = name
    elseif name == stem .. "." .. form.key then
      self.names[#self.names + 1] = stem .. ".weight"
    end
  end
  return self
end

-- Returns the `get` of forms for a layer.
function Weights:getter(stem)
  local get = {}
  function get.optional(ending)
    local name = stem .. "." .. ending
    return self.has[name] and self.inner:tensor(name) or nil
  end
  return setmetatable(get, { __call = function(_, ending)
    return get.optional(ending)
      or fail("%s: the tensor %s.%s is missing", self.path, stem, ending)
  end })
end

function Weights:keys() return self.names end

--- Returns the blocks of a quantized weight and their type; nil for another.
function Weights:blocks(name)
  local stem = stem_of(name, "weight")
  if not stem or not self:is_packed(stem) then return nil end
  if self.last ~= name then
    self.last = name
    self.held = torch.no_grad(self.form.read, self:getter(stem), self.path .. ": " .. name)
  end
  return self.held, self.form.type
end

function Weights:shape(name)
  local packed = self:blocks(name)
  if not packed then return self.inner:shape(name) end
  return { packed:size(0), packed:size(1) * size }
end

function Weights:tensor(name)
  local packed, type = self:blocks(name)
  return packed and native.dequantize(packed, type) or self.inner:tensor(name)
end

--- Takes `quantization_config` out of a configuration. Returns the weights of the folder, nil if
--- none are given, with the quantized ones as blocks, and the type of each kind of weights that is
--- quantized.
return function(given, weights, where)
  local config = given.quantization_config
  if config == nil then return weights, {} end
  local method = type(config) == "table" and config.quant_method
  local form = methods[method]
  if not form then
    fail("%s: quantization_config: the method %s is not read, only bitsandbytes, gptq, awq, fp8, "
      .. "mxfp4 and compressed-tensors: give the folder of the model before quantization", where,
      method)
  end
  form = form(config, where)
  given.quantization_config = nil
  return weights and (form.open or new_weights)(weights, form),
    form.open and { transposed = form.type } or { linear = form.type }
end
