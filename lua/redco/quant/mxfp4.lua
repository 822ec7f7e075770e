--- Folders of gpt-oss: X_blocks [experts, out, groups, 16] and X_scales [experts, out, groups]
--- stand for the weights X [experts, in, out] of experts. Each byte has two neighbours, the first
--- in its lower bits, each group of 32 numbers an exponent.
local fail = require "redco.fail"
local native = require "redco.native"
local torch = require "redco.torch"

local Weights = {}
Weights.__index = Weights

-- Returns the blocks [out, groups, 17] of the type mxfp4: a byte has the numbers i and i + 16.
local function packed(blocks, scales)
  local numbers = torch.stack({ blocks:bitwise_and(15), blocks:bitwise_right_shift(4) }, -1)
    :flatten(-2)
  local first, last = unpack(numbers:chunk(2, -1))
  return torch.cat({ scales:unsqueeze(-1), first:bitwise_or(last:bitwise_left_shift(4)) }, -1)
end

function Weights:keys() return self.names end

function Weights:is_packed(name) return self.sources[name .. "_blocks"] end

-- Returns the tensors of blocks and scales.
local function parts_of(self, name)
  local shape = self.inner:shape(name .. "_blocks")
  local expected = { shape[1], shape[2], shape[3] }
  if not self.sources[name .. "_scales"] then
    fail("%s: the tensor %s_scales is missing", self.path, name)
  end
  local found = self.inner:shape(name .. "_scales")
  if #shape ~= 4 or shape[4] ~= 16 or table.concat(found, ", ") ~= table.concat(expected, ", ") then
    fail("%s: %s_blocks and %s_scales are [%s] and [%s], expected [experts, out, groups, 16] and "
      .. "[experts, out, groups]", self.path, name, name, table.concat(shape, ", "),
      table.concat(found, ", "))
  end
  local blocks, scales = self.inner:tensor(name .. "_blocks"), self.inner:tensor(name .. "_scales")
  if blocks.dtype ~= "uint8" or scales.dtype ~= "uint8" then
    fail("%s: %s_blocks and %s_scales are %s and %s, expected uint8", self.path, name, name,
      blocks.dtype, scales.dtype)
  end
  return blocks, scales
end

function Weights:shape(name)
  if not self:is_packed(name) then return self.inner:shape(name) end
  local shape = self.inner:shape(name .. "_blocks")
  return { shape[1], (shape[3] or 0) * 32, shape[2] }
end

--- Returns the blocks [experts, out, groups, 17] of a weight and their type; nil for another.
function Weights:blocks(name)
  if not self:is_packed(name) then return nil end
  local blocks, scales = parts_of(self, name)
  local sizes = scales.shape
  sizes[4] = 17
  local result = torch.empty(sizes, { dtype = "uint8" })
  return torch.no_grad(function()
    for i = 0, blocks:size(0) - 1 do result[i]:copy_(packed(blocks[i], scales[i])) end
    return result
  end), "mxfp4"
end

--- Returns a weight of experts as bfloat16, which has all its numbers.
function Weights:tensor(name)
  local blocks, type = self:blocks(name)
  if not blocks then return self.inner:tensor(name) end
  local result = torch.empty(self:shape(name), { dtype = "bfloat16" })
  return torch.no_grad(function()
    for i = 0, blocks:size(0) - 1 do
      result[i]:copy_(native.dequantize(blocks[i], type, "bfloat16"):t())
    end
    return result
  end)
end

--- Returns an object with the methods of native.open_weights.
return function(inner)
  local self = setmetatable({ path = inner.path, inner = inner, names = {}, sources = {} }, Weights)
  for _, name in ipairs(inner:keys()) do self.sources[name] = true end
  for _, name in ipairs(inner:keys()) do
    local stem = name:match "^(.*)_blocks$" or name
    local of_blocks = name:match "^(.*)_scales$"
    if not (of_blocks and self:is_packed(of_blocks)) then self.names[#self.names + 1] = stem end
  end
  return self
end
