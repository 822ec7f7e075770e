--- Formats the messages of this library's Lua files.
local native = require "redco.native"

local is_text = { string = true, number = true, boolean = true, ["nil"] = true }

--- Returns `message:format(...)`, in which tables, tensors and functions are described.
return function(message, ...)
  local n, values = select("#", ...), { ... }
  for i = 1, n do
    if not is_text[type(values[i])] then values[i] = native.describe(values[i]) end
  end
  return message:format(unpack(values, 1, n))
end
