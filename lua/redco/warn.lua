--- warn: shows the warnings of this library's Lua files.
local formatted = require "redco.formatted"
local native = require "redco.native"

--- Shows "warning: " and the text `message:format(...)`, as `formatted` does it, once in a run: by
--- its first process. The program writes it to stderr; other hosts show it by
--- `redco::show_notices`.
return function(message, ...) native.notice("warning: " .. formatted(message, ...)) end
