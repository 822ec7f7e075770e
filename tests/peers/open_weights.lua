-- Opens each file that the list names, one a line; says "ok" or why not.
local native = require "redco.native"
for path in io.lines(arg[1]) do
  local ok, message = pcall(native.open_weights, path)
  print(ok and "ok" or (tostring(message):gsub("\n", " ")))
end
