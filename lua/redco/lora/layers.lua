--- The layers of a params tree and their adapters. An adapter consists of the matrices
--- lora_A.weight [r, in] and lora_B.weight [out, r], or of an embedding lora_embedding_A [r, n] and
--- lora_embedding_B [size, r], with DoRA also of lora_magnitude_vector [out], and has the plain
--- values lora_scaling, lora_dropout (if above 0), lora_init and lora_loftq_iter (initial.lua says
--- what they are) and lora_fan_in_fan_out (if the weight is [in, out]). lora_saved marks layers
--- that are saved whole. The matrices of all experts of a mixture may be one parameter
--- [n, rows, columns], a stack: its adapter has lora_A.weight [n, r, columns] and lora_B.weight
--- [n, rows, r], whichever of rows and columns are inputs.
local fail = require "redco.fail"
local torch = require "redco.torch"
local weights = require "redco.quant.weights"

local layers = {}

local parts = {
  lora_A = true, lora_B = true, lora_embedding_A = true, lora_embedding_B = true,
  lora_scaling = true, lora_dropout = true, lora_fan_in_fan_out = true, lora_saved = true,
  lora_magnitude_vector = true, lora_init = true, lora_loftq_iter = true,
}

--- Returns whether the entry of this key or dotted name belongs to an adapter.
function layers.is_adapter(name)
  return parts[name:gsub("%.weight$", ""):match "[^.]*$"] == true
end

local Layer = {}
Layer.__index = Layer

-- The ends of the names of stacks.
local stacks = { "experts%.gate_up_proj", "experts%.down_proj", "input_linear%.weight",
  "output_linear%.weight" }

local function is_stack(name)
  for _, ending in ipairs(stacks) do
    if name:find("%f[%w_]" .. ending .. "$") then return true end
  end
  return false
end

-- The keys of a layer's entries in `node` begin with `stem`: "h.0.attn.c_attn." in a flat table, ""
-- if the layer is a separate table. `key` is that of its weight.
local function new_layer(node, key, name)
  local ending = key:find "%f[%w_]weight$" and 7 or 0
  return setmetatable({
    name = name:sub(1, -1 - ending), node = node, key = key, parameter = name,
    stem = ending == 0 and key .. "." or key:sub(1, -ending),
  }, Layer)
end

local function collect(node, path, found, has_stacks)
  for key, value in pairs(node) do
    local name = path == "" and tostring(key) or path .. "." .. key
    if type(value) == "table" then
      collect(value, name, found, has_stacks)
    elseif torch.is_tensor(value) and type(key) == "string" and not layers.is_adapter(name)
      and (key:find "%f[%w_]weight$" or has_stacks and is_stack(name)) then
      found[#found + 1] = new_layer(node, key, name)
    end
  end
  return found
end

-- Whether the layers are of GPT-Neo or StarCoder, which have GPT-2's names for weights [out, in].
local function are_linear(found)
  for _, layer in ipairs(found) do
    if layer.name:find "%f[%w]h%.%d+%.attn%.attention%." then return true end
    local bias, weight = layer:get "bias", layer:get "weight"
    if bias and layer.name:find "%.attn%.c_attn$" and weight.shape[1] == bias:numel()
      and weight.shape[2] ~= weight.shape[1] then
      return true
    end
  end
  return false
end

local function sorted(found)
  table.sort(found, function(a, b) return a.name < b.name end)
  local is_linear = are_linear(found)
  for _, layer in ipairs(found) do layer.is_linear = is_linear end
  return found
end

--- Returns all layers that have a weight, in the order of their names: {name, parameter (the
--- weight's name), ...}.
function layers.of(params) return sorted(collect(params, "", {}, false)) end

--- The same with the stacks of experts that are parameters without a layer, as if they were layers:
--- all that may have an adapter.
function layers.with_stacks(params) return sorted(collect(params, "", {}, true)) end

--- Returns the key in `node` of an entry of the layer: "bias", "weight" and those that begin so.
function Layer:key_of(key)
  return key:sub(1, 6) == "weight" and self.key .. key:sub(7) or self.stem .. key
end

function Layer:get(key) return self.node[self:key_of(key)] end

function Layer:set(key, value) self.node[self:key_of(key)] = value end

--- Returns whether the weight is a stack of experts' matrices.
function Layer:is_stack() return is_stack(self.parameter) and #self:shape() == 3 end

--- lora_A or lora_B, or nil.
function Layer:matrix(name)
  if self.stem ~= "" then return self:get(name .. ".weight") end
  return self.node[name] and self.node[name].weight
end

function Layer:set_matrix(name, matrix)
  if self.stem ~= "" then
    self:set(name .. ".weight", matrix)
  else
    self.node[name] = { weight = matrix }
  end
end

--- Returns whether the layer has an adapter.
function Layer:has_adapter()
  return (self:matrix "lora_A" or self:get "lora_embedding_A") ~= nil
end

local gpt2 = { c_attn = true, c_proj = true, c_fc = true, q_attn = true }

--- Returns whether this is a layer of GPT-2, whose weights are [in, out].
function Layer:is_conv1d()
  local name = self.name:match "%f[%w]h%.%d+%.%a+%.([%w_]+)$"
  return name ~= nil and gpt2[name] == true and not self.is_linear
end

local embeddings = {
  embed_in = true, embed_tokens = true, shared = true, tok_embeddings = true,
  token_embedding = true, word_embeddings = true, wte = true,
}

--- Returns whether this is the table of a model's tokens, [n, size].
function Layer:is_embedding()
  return self.stem ~= "" and embeddings[self.name:match "[^.]*$"] == true
end

--- Returns the sizes of the weight as floats, also if it is quantized.
function Layer:shape()
  local shape = weights.shape(self:get "weight", self:get "weight_type")
  if not self:get "weight_is_transposed" then return shape end
  return { shape[1], shape[3], shape[2] }
end

--- Returns the numbers of inputs and outputs. Raises an error if the weight is not a matrix.
function Layer:sizes(fan_in_fan_out)
  local shape = self:shape()
  if #shape ~= 2 then
    fail("the weight of %s is [%s]; adapters are for linear layers%s", self.name,
      table.concat(shape, ", "), self:is_stack() and "; target_parameters takes \""
        .. self.parameter:match "[^.]*%.[^.]*$" .. "\"" or "")
  end
  if fan_in_fan_out then return shape[1], shape[2] end
  return shape[2], shape[1]
end

return layers
