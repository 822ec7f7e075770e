-- Writes what a GGUF file has as a model folder, and a line on each value of its metadata.
local native = require "redco.native"
local file, params = native.open_gguf(arg[1]), {}
for _, name in ipairs(file:keys()) do params[name] = file:tensor(name) end
native.save_weights(arg[1] .. ".weights", params)
for key, value in pairs(file.metadata) do
  if type(value) == "table" then value = #value .. ":" .. table.concat(value, ",") end
  print(key, value)
end
