--- Checks the first argument of a layer's function.
local fail = require "redco.fail"
local native = require "redco.native"

--- Raises an error unless `params` is a table: nn.linear(params, x), of nn.Linear.
return function(name, constructor, params)
  if type(params) == "table" then
    if not rawequal(params, package.loaded["redco.nn"]) then return end
    fail("nn.%s is called with a dot, not a colon: nn.%s(...)", name, name)
  end
  fail("nn.%s: the first argument is the table of parameters that nn.%s returns, got %s", name,
    constructor, native.describe(params))
end
