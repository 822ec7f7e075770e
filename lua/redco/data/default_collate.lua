--- default_collate: batches of examples that all have the same structure.
local fail = require "redco.fail"
local native = require "redco.native"
local registry = require "redco.registry"
local torch = require "redco.torch"

local function shape_text(value)
  return torch.is_tensor(value) and ("has shape [%s]"):format(table.concat(value.shape, ", "))
    or "is a " .. type(value)
end

-- "example 2", "examples.x of example 2"
local function place(path, i)
  return (path == "examples" and "" or path .. " of ") .. "example " .. i
end

local function check_keys(first, value, path, i)
  if type(value) ~= "table" then
    fail("default_collate: %s is a %s, but a table in example 1", place(path, i), type(value))
  end
  for key in pairs(first) do
    if value[key] == nil then
      fail("default_collate: %s.%s: example %d has none, but example 1 has", path, key, i)
    end
  end
  for key in pairs(value) do
    if first[key] == nil then
      fail("default_collate: %s.%s: example 1 has none, but example %d has", path, key, i)
    end
  end
end

local function collate(values, path)
  local first = values[1]
  if torch.is_tensor(first) then
    for i, value in ipairs(values) do
      if not torch.is_tensor(value) or value.shape ~= first.shape then
        fail("default_collate: %s %s, but %s in example 1; write a collate_fn that pads them",
          place(path, i), shape_text(value), (shape_text(first):gsub("^has ", "")))
      end
    end
    return torch.stack(values)
  end
  if type(first) == "number" or type(first) == "boolean" then return torch.tensor(values) end
  if type(first) == "string" then return values end
  if type(first) ~= "table" then
    fail("default_collate: %s: cannot make a batch of %s", path, native.describe(first))
  end
  for i, value in ipairs(values) do check_keys(first, value, path, i) end
  local batch = {}
  for key in pairs(first) do
    local of_key = {}
    for i, value in ipairs(values) do of_key[i] = value[key] end
    batch[key] = collate(of_key, path .. "." .. tostring(key))
  end
  return batch
end

return registry.define("redco.data.default_collate", [[
default_collate(examples) -> batch
Collates examples of equal structure, for use as a collate_fn. Tensors of equal shape are stacked.
Numbers and booleans become a tensor, strings a list. Tables with equal keys become a table of
batches.]],
function(examples)
  return collate(examples, "examples")
end)
