--- Errors of this library's Lua files.
local native = require "redco.native"

--- Raises an error with the text `message:format(...)`, located at the line of the script that
--- called into this library, however deep.
local function fail(message, ...)
  native.fail(message:format(...))
end

return fail
