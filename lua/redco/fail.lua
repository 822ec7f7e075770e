--- fail: raises the errors of this library's Lua files.
local native = require "redco.native"

local is_text = { string = true, number = true, boolean = true, ["nil"] = true }

--- Raises an error with the text `message:format(...)`, in which tables, tensors and functions are
--- described. Its position is the line of the script that called this library, at any depth.
local function fail(message, ...)
  local n, values = select("#", ...), { ... }
  for i = 1, n do
    if not is_text[type(values[i])] then values[i] = native.describe(values[i]) end
  end
  native.fail(message:format(unpack(values, 1, n)))
end

return fail
