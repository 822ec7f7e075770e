--- A check of a model's parameters that a script gives.
local fail = require "redco.fail"
local native = require "redco.native"

--- Raises an error unless `params` is a table with at least one of the model's parameters. Others
--- may be missing: adapters that are merged into quantized weights leave out their types.
return function(where, model, params)
  if type(params) == "table" then
    local own = model.params or params
    for name in pairs(own) do
      if params[name] ~= nil then return end
    end
  end
  fail("%s: expected parameters of the model, got %s", where, native.describe(params))
end
