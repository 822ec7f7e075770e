--- The folder of the running script.
local registry = require "redco.registry"

return registry.define("redco.script_folder", [[
script_folder() -> string
Returns the folder of the running script, with a slash at its end: "./" if the script was named
without a folder, or if no script runs.]], function()
  local script = (rawget(_G, "arg") or {})[0]
  return script and script:match "^(.*/)" or "./"
end)
