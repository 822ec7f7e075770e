--- fail: raises the errors of this library's Lua files.
local native = require "redco.native"

--- Raises an error with the text `message:format(...)`. Its position is the line of the script that
--- called this library, at any depth.
local function fail(message, ...)
  native.fail(message:format(...))
end

return fail
