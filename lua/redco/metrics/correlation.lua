--- Correlation of predicted numbers with their references, with the results of SciPy.
local fail = require "redco.fail"
local numbers = require "redco.metrics.numbers"
local registry = require "redco.registry"

local function two_lists(where, predictions, references)
  predictions = numbers(where, "predictions", predictions)
  references = numbers(where, "references", references)
  if #predictions < 2 or #predictions ~= #references then
    fail("%s: expected as many predictions as references, and at least two, got %d and %d", where,
      #predictions, #references)
  end
  return predictions, references
end

local function mean(values)
  local sum = 0
  for _, value in ipairs(values) do sum = sum + value end
  return sum / #values
end

-- Returns the differences from the mean, divided by the largest one, so that no square overflows.
-- Equal values have none: their mean may be rounded to another number.
local function differences(values)
  local center, largest, is_constant, result = mean(values), 0, true, {}
  for i, value in ipairs(values) do
    result[i] = value - center
    largest = math.max(largest, math.abs(result[i]))
    is_constant = is_constant and value == values[1]
  end
  for i, difference in ipairs(result) do result[i] = is_constant and 0 or difference / largest end
  return result
end

-- NaN if one of the lists is constant.
local function pearson(x, y)
  local xx, yy, xy = 0, 0, 0
  x, y = differences(x), differences(y)
  for i, a in ipairs(x) do
    local b = y[i]
    xx, yy, xy = xx + a * a, yy + b * b, xy + a * b
  end
  return math.max(-1, math.min(1, xy / (math.sqrt(xx) * math.sqrt(yy))))
end

-- Returns the rank of each value, from 1; equal values have the mean of their ranks.
local function ranks(values)
  local order, result = {}, {}
  for i in ipairs(values) do order[i] = i end
  table.sort(order, function(a, b) return values[a] < values[b] end)
  local first = 1
  while first <= #order do
    local last = first
    while last < #order and values[order[last + 1]] == values[order[first]] do last = last + 1 end
    for i = first, last do result[order[i]] = (first + last) / 2 end
    first = last + 1
  end
  return result
end

local correlation = {}

correlation.pearsonr = registry.define("redco.metrics.pearsonr", [[
pearsonr(predictions, references) -> number
Returns Pearson's correlation coefficient, from -1 to 1; NaN if all predictions or all references
are equal. The arguments are lists of numbers or tensors.]], function(predictions, references)
  return pearson(two_lists("metrics.pearsonr", predictions, references))
end)

correlation.spearmanr = registry.define("redco.metrics.spearmanr", [[
spearmanr(predictions, references) -> number
Returns Spearman's rank correlation coefficient, from -1 to 1; NaN if all predictions or all
references are equal. Equal numbers share the mean of their ranks. The arguments are lists of
numbers or tensors.]], function(predictions, references)
  predictions, references = two_lists("metrics.spearmanr", predictions, references)
  return pearson(ranks(predictions), ranks(references))
end)

return correlation
