--- Errors of predicted numbers, with the results of scikit-learn.
local fail = require "redco.fail"
local numbers = require "redco.metrics.numbers"
local registry = require "redco.registry"

local regression = {}

local function two_lists(where, predictions, references, least)
  predictions = numbers(where, "predictions", predictions)
  references = numbers(where, "references", references)
  if #predictions < least or #predictions ~= #references then
    fail("%s: expected as many predictions as references, and at least %d, got %d and %d", where,
      least, #predictions, #references)
  end
  return predictions, references
end

local function sum_of(f, x, y)
  local sum = 0
  for i, value in ipairs(x) do sum = sum + f(value, y and y[i]) end
  return sum
end

local function square_of_difference(a, b) return (a - b) ^ 2 end

regression.mean_squared_error = registry.define("redco.metrics.mean_squared_error", [[
mean_squared_error(predictions, references) -> number
Returns the mean of (prediction - reference)^2. The arguments are lists of numbers or tensors.]],
function(predictions, references)
  local x, y = two_lists("metrics.mean_squared_error", predictions, references, 1)
  return sum_of(square_of_difference, x, y) / #x
end)

regression.mean_absolute_error = registry.define("redco.metrics.mean_absolute_error", [[
mean_absolute_error(predictions, references) -> number
Returns the mean of |prediction - reference|. The arguments are lists of numbers or tensors.]],
function(predictions, references)
  local x, y = two_lists("metrics.mean_absolute_error", predictions, references, 1)
  return sum_of(function(a, b) return math.abs(a - b) end, x, y) / #x
end)

regression.r2 = registry.define("redco.metrics.r2", [[
r2(predictions, references) -> number
Returns the coefficient of determination, at most 1: 1 minus the squared error relative to that of
the mean of the references. If all references are equal, it is 1 for exact predictions and otherwise 0.
The arguments are lists of numbers or tensors.]], function(predictions, references)
  local x, y = two_lists("metrics.r2", predictions, references, 2)
  local mean = sum_of(function(a) return a end, y) / #y
  local error_sum = sum_of(square_of_difference, x, y)
  -- Compared one by one, as the mean of equal numbers may be rounded to another number.
  local n_others = sum_of(function(a) return a == y[1] and 0 or 1 end, y)
  if n_others == 0 then return error_sum == 0 and 1 or 0 end
  return 1 - error_sum / sum_of(function(a) return (a - mean) ^ 2 end, y)
end)

return regression
