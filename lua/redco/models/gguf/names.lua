--- The names that the parameters of models have in GGUF files.
local fail = require "redco.fail"
local listed = require "redco.models.listed"
local rows = require "redco.models.gguf.architectures"
local torch = require "redco.torch"

local names = {}

--- Returns a copy of a complete configuration with the names of settings that all families share.
function names.settings(family, c)
  local result = {}
  for key, value in pairs(c) do result[key] = value end
  for alias, name in pairs(family.aliases or {}) do
    if result[alias] == nil then result[alias] = c[name] end
  end
  return result
end

--- Returns the name in the file of a parameter, of experts' their number or nil, and its part; nil
--- if there is none.
function names.of(row, parameter)
  local stem, kind = parameter:match "^(.+)%.(%a+)$"
  for part, own in pairs(row.others) do
    if own == stem then return part .. "." .. kind, nil, part end
  end
  local rest = stem and stem:sub(1, #row.layers) == row.layers and stem:sub(#row.layers + 1)
  local layer, place = (rest or ""):match "^(%d+)%.(.+)$"
  if not layer then return nil end
  local pattern, expert = place:gsub("%.experts%.%d+%.", ".experts.%%d."),
    place:match "%.experts%.(%d+)%."
  for part, own in pairs(row.of_layer) do
    if own == pattern then
      return ("blk.%d.%s.%s"):format(layer, part, kind), tonumber(expert), part
    end
  end
end

-- Returns the tensors of a file, a list of {name, part, parameters}; a tensor of experts has
-- several parameters. Returns nil and the unknown parameters if the row has no name for some.
local function tensors_of(row, params)
  local list, by_name, unknown = {}, {}, {}
  for parameter, value in pairs(params) do
    if torch.is_tensor(value) then
      local name, expert, part = names.of(row, parameter)
      if not name then
        unknown[#unknown + 1] = parameter
      else
        if not by_name[name] then
          by_name[name] = { name = name, part = part, parameters = {}, is_stack = expert ~= nil }
          list[#list + 1] = by_name[name]
        end
        by_name[name].parameters[(expert or 0) + 1] = parameter
      end
    end
  end
  if #unknown > 0 then return nil, unknown end
  local function order(tensor)
    local layer = tensor.name:match "^blk%.(%d+)%."
    return layer and tonumber(layer) or tensor.part:find "^output" and math.huge or -1
  end
  table.sort(list, function(a, b)
    local x, y = order(a), order(b)
    if x ~= y then return x < y end
    return a.name < b.name
  end)
  return list
end

--- Returns the architecture and the row of a model, and its tensors: a list of {name, part,
--- parameters}, of which experts' have several parameters.
function names.row_of(model, params)
  local architectures, unknown, known = {}, nil, {}
  for architecture in pairs(rows) do architectures[#architectures + 1] = architecture end
  table.sort(architectures)
  for _, architecture in ipairs(architectures) do
    local row = rows[architecture]
    for _, candidate in ipairs { row, unpack(row.variants or {}) } do
      known[candidate.model_type] = true
      if candidate.model_type == model.config.model_type
        or candidate.like and candidate.like[model.config.model_type] then
        local list, rest = tensors_of(candidate, params)
        if list then return architecture, candidate, list end
        unknown = rest
      end
    end
  end
  if unknown then
    fail("save_gguf: the %s in GGUF has no place for the weights %s%s", model.family.architecture,
      listed(unknown), table.concat(unknown, " "):find "lora_"
        and "; redco.lora.merge(params) adds adapters to the weights" or "")
  end
  local list = {}
  for name in pairs(known) do list[#list + 1] = name end
  table.sort(list)
  fail("save_gguf: llama.cpp's files of %s are not written, only those of %s",
    model.config.model_type, table.concat(list, ", "))
end

return names
