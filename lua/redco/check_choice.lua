--- Raises an error that names the argument unless `value` is one of the given texts.
local fail = require "redco.fail"
local native = require "redco.native"

return function(where, name, value, ...)
  local choices = {}
  for i, choice in ipairs { ... } do
    if value == choice then return end
    choices[i] = ('"%s"'):format(choice)
  end
  local last = table.remove(choices)
  fail("%s: %s: expected %s or %s, got %s", where, name, table.concat(choices, ", "), last,
    native.describe(value))
end
