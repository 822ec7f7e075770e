--- fail: raises the errors of this library's Lua files.
local formatted = require "redco.formatted"
local native = require "redco.native"

--- Raises an error with the text `message:format(...)`, as `formatted` does it. Its position is the
--- line of the script that called this library, at any depth.
return function(message, ...) native.fail(formatted(message, ...)) end
