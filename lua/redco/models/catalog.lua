--- The list of the families, for users and for the reference. A family's file gives the names of
--- its `models` and its `remarks`; the rest is read from what it does.
local aliases = require "redco.models.aliases"
local architectures = require "redco.models.gguf.architectures"
local tasks = require "redco.models.tasks"

-- The kind of model for each input that no other kind has.
local kinds = { pixel_values = "images", input_features = "sound", input_values = "sound" }

local function kind_of(family)
  for _, name in ipairs(family.inputs) do
    if kinds[name] then return kinds[name] end
  end
  if family.tower then return "images" end  -- the text half of a model of images
  if family.new_encoder then return "encoder-decoder" end
  return family.default_task and "encoder" or "decoder"
end

local function tasks_of(family)
  local names = tasks.names(family)
  local first = family.default_task or tasks.own(family) or family.task
  local result = { first }
  for _, name in ipairs(names) do
    if name ~= first then result[#result + 1] = name end
  end
  return result
end

local function gguf_of(model_type)
  local names = {}
  for name, row in pairs(architectures) do
    if row.model_type == model_type then names[#names + 1] = name end
  end
  table.sort(names)
  return names
end

-- Returns the aliases of this type, and `models` with the names of their models added.
local function aliases_of(model_type, models)
  local names = {}
  for name, row in pairs(aliases) do
    if row.of == model_type then names[#names + 1] = name end
  end
  table.sort(names)
  for _, name in ipairs(names) do models = models .. ", " .. aliases[name].models end
  return names, models
end

--- Returns a row for each family: {model_type, aliases, models, kind, tasks, gguf, remarks}.
return function(model_types, families)
  local rows = {}
  for i, model_type in ipairs(model_types) do
    local family = families[model_type]
    local others, names = aliases_of(model_type, family.models)
    rows[i] = {
      model_type = model_type, aliases = others, models = names, kind = kind_of(family),
      tasks = tasks_of(family), gguf = gguf_of(model_type), remarks = family.remarks,
    }
  end
  return rows
end
