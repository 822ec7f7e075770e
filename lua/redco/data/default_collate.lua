--- default_collate: batches of examples that all have the same structure.
local fail = require "redco.fail"
local registry = require "redco.registry"
local torch = require "redco.torch"

local function collate(values, path)
  local first = values[1]
  if torch.is_tensor(first) then
    for i, value in ipairs(values) do
      if not torch.is_tensor(value) or value.shape ~= first.shape then
        fail("default_collate: %s of example %d does not have the shape of the first example, [%s]",
          path, i, table.concat(first.shape, ", "))
      end
    end
    return torch.stack(values)
  end
  if type(first) == "number" or type(first) == "boolean" then return torch.tensor(values) end
  if type(first) == "string" then return values end
  if type(first) ~= "table" then
    fail("default_collate: %s: cannot make a batch of a %s", path, type(first))
  end
  local batch = {}
  for key in pairs(first) do
    local of_key = {}
    for i, value in ipairs(values) do
      of_key[i] = value[key]
      if of_key[i] == nil then fail("default_collate: %s.%s: example %d has none", path, key, i) end
    end
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
