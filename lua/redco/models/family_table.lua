--- All families, by model_type. Each is read from the file of its name in families/.
local lazy = require "redco.lazy"
local native = require "redco.native"

return lazy.fields({}, native.embedded_modules "redco.models.families.", function(model_type)
  return require("redco.models.families." .. model_type)
end)
