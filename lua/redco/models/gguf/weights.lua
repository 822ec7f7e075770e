--- The weights of a GGUF file, with Hugging Face's names and in the order of its models. They have
--- the fields and methods of native.open_weights: `path`, keys, shape, tensor, and blocks.
local convert = require "redco.models.gguf.convert"
local fail = require "redco.fail"
local native = require "redco.native"
local positions = require "redco.models.gguf.positions"

local Weights = {}
Weights.__index = Weights

-- Returns Hugging Face's name of a tensor, or the tensor's own if there is none, and the tensor's
-- part: its name without layer and kind. A name with %d stands for one matrix of each expert.
local function name_of(row, tensor)
  local layer, part, kind = tensor:match "^blk%.(%d+)%.([%w_]+)%.(%a+)$"
  if row.of_layer[part] then
    return row.layers .. layer .. "." .. row.of_layer[part] .. "." .. kind, part
  end
  part, kind = tensor:match "^([%w_]+)%.(%a+)$"
  return row.others[part] and row.others[part] .. "." .. kind or tensor, part
end

--- `row` is that of the file's architecture, `config` its configuration.
function Weights.new(file, row, config)
  local self = setmetatable({ path = file.path, file = file, row = row, config = config, names = {},
    sources = {} }, Weights)
  local function add(name, source)
    self.names[#self.names + 1], self.sources[name] = name, source
  end
  for _, tensor in ipairs(file:keys()) do
    local name, part = name_of(row, tensor)
    if name:find("%d", 1, true) then
      local shape = file:shape(tensor)
      if #shape ~= 3 or shape[1] ~= config[row.n_experts] then
        fail("%s: the tensor %s is [%s], expected a matrix for each of %d experts", file.path,
          tensor, table.concat(shape, ", "), config[row.n_experts])
      end
      for i = 0, shape[1] - 1 do
        add((name:gsub("%%d", i)), { tensor = tensor, part = part, expert = i })
      end
    elseif not positions.tensors[tensor] then
      add(name, { tensor = tensor, part = part })
    end
  end
  return self
end

function Weights:keys() return self.names end

--- Returns the type of a quantized tensor that stays packed, nil of another.
function Weights:type(name)
  local source = self.sources[name]
  if not source or self:is_transposed(source) then return nil end
  return select(2, native.gguf_blocks(self.file, source.tensor))
end

function Weights:shape(name)
  local source = self.sources[name]
  local shape = self.file:shape(source.tensor)
  if source.expert then table.remove(shape, 1) end
  if self:is_transposed(source) then shape[1], shape[2] = shape[2], shape[1] end
  return shape
end

function Weights:is_transposed(source)
  return self.row.transposed[source.part] and #self.file:shape(source.tensor) == 2
end

-- Returns a tensor, or its blocks, as Hugging Face's models have it.
function Weights:converted(source, tensor)
  return convert.read(tensor, self.row.convert[source.part], self.config)
end

function Weights:tensor(name)
  local source = self.sources[name]
  if source.expert then
    -- Dequantizes only the blocks of this expert.
    local blocks, type = self:blocks(name)
    if blocks then return native.dequantize(blocks, type) end
    return self.file:tensor(source.tensor):select(0, source.expert)
  end
  local tensor = self:converted(source, self.file:tensor(source.tensor))
  return self:is_transposed(source) and tensor:t():contiguous() or tensor
end

--- Returns the blocks of a quantized tensor and their type, nil for another.
function Weights:blocks(name)
  local source = self.sources[name]
  if self:is_transposed(source) then return nil end
  local blocks, type = native.gguf_blocks(self.file, source.tensor)
  if not blocks then return nil end
  if source.expert then return blocks:select(0, source.expert), type end
  return self:converted(source, blocks), type
end

return Weights
