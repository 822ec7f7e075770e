--- Correlation of predicted numbers with their references, with the results of SciPy.
local fail = require "redco.fail"
local registry = require "redco.registry"
local torch = require "redco.torch"

local function list_of(where, name, given)
  if torch.is_tensor(given) then given = given:reshape { -1 }:tolist() end
  if type(given) ~= "table" then
    fail("%s: %s: expected a list or a tensor of numbers, got %s", where, name, type(given))
  end
  for i, value in ipairs(given) do
    if type(value) ~= "number" then
      fail("%s: %s: entry %d is a %s, expected a number", where, name, i, type(value))
    end
  end
  return given
end

local function two_lists(where, predictions, references)
  predictions = list_of(where, "predictions", predictions)
  references = list_of(where, "references", references)
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

-- NaN if one of the lists is constant.
local function pearson(x, y)
  local mean_x, mean_y, xx, yy, xy = mean(x), mean(y), 0, 0, 0
  for i, value in ipairs(x) do
    local a, b = value - mean_x, y[i] - mean_y
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
