--- Checks the first argument of a layer's function.
local fail = require "redco.fail"
local native = require "redco.native"

--- Raises an error unless `params` is a table: nn.linear(params, x), of nn.Linear. With a `field`,
--- it must have a value there.
return function(name, constructor, params, field)
  if rawequal(params, package.loaded["redco.nn"]) then
    fail("nn.%s is called with a dot, not a colon: nn.%s(...)", name, name)
  end
  if type(params) == "table" and (field == nil or params[field] ~= nil) then return end
  fail("nn.%s: the first argument is the table of parameters that nn.%s returns, got %s", name,
    constructor, native.describe(params))
end
