--- The stacks of experts in version 5 of transformers, whose folders of adapters have one adapter
--- for each matrix of a stack. Here they are layers, or stacks with the names of version 4.
local native = require "redco.native"

-- The layers of an expert whose concatenated rows are the rows of a stack's matrix.
local members = {
  gate_up_proj = { { "gate_proj", "w1" }, { "up_proj", "w3" } },
  down_proj = { { "down_proj", "w2" } },
}

local Stack = {}
Stack.__index = Stack

function Stack.is_stack() return true end

--- [n, rows, columns] of the matrices.
function Stack:shape()
  local rows, columns = 0, nil
  for _, experts in ipairs(self.members) do
    local shape = experts[1]:shape()
    rows, columns = rows + shape[1], shape[2]
  end
  return { #self.members[1], rows, columns }
end

function Stack:set(key, value)
  for _, experts in ipairs(self.members) do
    for _, layer in ipairs(experts) do layer:set(key, value) end
  end
end

--- Gives each layer a copy of its part of lora_A [n, r, columns] or lora_B [n, rows, r].
function Stack:set_matrix(name, matrix)
  local first = 0
  for _, experts in ipairs(self.members) do
    local rows = experts[1]:shape()[1]
    for i, layer in ipairs(experts) do
      local own = matrix:select(0, i - 1)
      if name == "lora_B" then own = own:narrow(0, first, rows) end
      layer:set_matrix(name, native.parameter(own.shape, { dtype = own.dtype }):copy_(own))
    end
    first = first + rows
  end
end

-- Returns the layers of experts by module and last part of the name, {[module] = {[last] = {the
-- layers of expert 0, 1, ...}}}.
local function by_module(all)
  local modules = {}
  for _, layer in ipairs(all) do
    local module, i, last = layer.name:match "^(.*%.experts)%.(%d+)%.([^.]*)$"
    if module then
      modules[module] = modules[module] or {}
      modules[module][last] = modules[module][last] or {}
      modules[module][last][tonumber(i) + 1] = layer
    end
  end
  return modules
end

-- The names of stacks, by those of version 4: Granite's.
local renamed = {
  ["input_linear.weight"] = "experts.gate_up_proj",
  ["output_linear.weight"] = "experts.down_proj",
}

--- Returns the stacks that the experts of a list of layers and stacks are in version 5.
return function(all)
  local found = {}
  for _, layer in ipairs(all) do
    local module, last = layer.parameter:match "^(.*%.)([%w_]+%.weight)$"
    if renamed[last] then
      found[#found + 1] = setmetatable({ parameter = module .. renamed[last] }, { __index = layer })
    end
  end
  for module, layers in pairs(by_module(all)) do
    for last, kinds in pairs(members) do
      local own = {}
      for k, names in ipairs(kinds) do own[k] = layers[names[1]] or layers[names[2]] end
      if #own == #kinds then
        local name = module:gsub("%.block_sparse_moe%.experts$", ".mlp.experts")
        found[#found + 1] = setmetatable({ parameter = name .. "." .. last, members = own,
          node = {}, key = last }, Stack)
      end
    end
  end
  return found
end
