--- The settings of processors in a model's folder.
local readers = require "redco.data.readers"

local function exists(path)
  local file = io.open(path)
  if file then file:close() end
  return file ~= nil
end

--- Returns the settings, and where they are. Version 5 of transformers may write those of all
--- processors of a model into one file; `part` is the key there.
return function(dir, part)
  local where, newer = dir .. "/preprocessor_config.json", dir .. "/processor_config.json"
  if exists(where) or not exists(newer) then return readers.json(where), where end
  return readers.json(newer)[part], newer .. ": " .. part
end
