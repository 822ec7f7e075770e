--- All families, by model_type, also by its aliases. Each is read from the file of its name in
--- families/.
local aliases = require "redco.models.aliases"
local lazy = require "redco.lazy"
local native = require "redco.native"

local function merged(...)
  local result = {}
  for i = 1, select("#", ...) do
    for key, value in pairs((select(i, ...)) or {}) do result[key] = value end
  end
  return result
end

-- Returns the family, changed to read folders as the row of aliases.lua describes.
local function with_names_of(family, row)
  local result = {
    defaults = merged(family.defaults, row.defaults), aliases = merged(family.aliases, row.keys),
  }

  function result.complete(c, is_file)
    -- The folder names the classes and the code of the alias.
    c.architectures, c.auto_map = nil, nil
    if family.complete then family.complete(c, is_file) end
  end

  result.current_name = row.renamed and function(name)
    for _, pair in ipairs(row.renamed) do name = name:gsub(pair[1], pair[2]) end
    return name
  end

  return setmetatable(result, { __index = family })
end

local names = native.embedded_modules "redco.models.families."
for name in pairs(aliases) do names[#names + 1] = name end

local families
families = lazy.fields({}, names, function(name)
  local row = aliases[name]
  return row and with_names_of(families[row.of], row) or require("redco.models.families." .. name)
end)

return families
