--- Checks lists of numbers given to a metric.
local fail = require "redco.fail"
local torch = require "redco.torch"

--- Returns a list of numbers, which may be given as a tensor. NaN is an error: it has no order.
local function numbers(where, name, given)
  if torch.is_tensor(given) then given = given:reshape { -1 }:tolist() end
  if type(given) ~= "table" then
    fail("%s: %s: expected a list or a tensor of numbers, got %s", where, name, type(given))
  end
  for i, value in ipairs(given) do
    if type(value) ~= "number" then
      fail("%s: %s: entry %d is a %s, expected a number", where, name, i, type(value))
    end
    if value ~= value then fail("%s: %s: entry %d is NaN", where, name, i) end
  end
  return given
end

return numbers
