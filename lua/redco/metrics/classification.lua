--- Accuracy, F1 and Matthews' correlation of predicted classes, with the results of scikit-learn.
local arguments = require "redco.arguments"
local fail = require "redco.fail"
local registry = require "redco.registry"
local torch = require "redco.torch"

local function list_of(where, name, given)
  if torch.is_tensor(given) then return given:reshape { -1 }:tolist() end
  if type(given) ~= "table" then
    fail("%s: %s: expected a list or a tensor of classes, got %s", where, name, type(given))
  end
  return given
end

local function two_lists(where, predictions, references)
  predictions = list_of(where, "predictions", predictions)
  references = list_of(where, "references", references)
  if #predictions == 0 or #predictions ~= #references then
    fail("%s: expected as many predictions as references, and at least one, got %d and %d", where,
      #predictions, #references)
  end
  return predictions, references
end

local classification = {}

classification.accuracy = registry.define("redco.metrics.accuracy", [[
accuracy(predictions, references) -> number
Returns the fraction of predicted classes, from 0 to 1, that equal their reference. The arguments
are lists of numbers or strings, or tensors.]], function(predictions, references)
  predictions, references = two_lists("metrics.accuracy", predictions, references)
  local matches = 0
  for i, prediction in ipairs(predictions) do
    if prediction == references[i] then matches = matches + 1 end
  end
  return matches / #predictions
end)

--- Counts, for each class, how often it is predicted, how often it is the reference, and both.
local function count_classes(predictions, references)
  local counts = {}
  local function add(class, name)
    counts[class] = counts[class] or { predicted = 0, expected = 0, both = 0 }
    counts[class][name] = counts[class][name] + 1
  end
  for i, prediction in ipairs(predictions) do
    add(prediction, "predicted")
    add(references[i], "expected")
    if prediction == references[i] then add(prediction, "both") end
  end
  return counts
end

local function f1_of(count)
  local sum = count.predicted + count.expected
  return sum > 0 and 2 * count.both / sum or 0
end

local averages = {}

function averages.binary(counts, n, pos_label)
  local n_classes, others = 0, {}
  for class in pairs(counts) do
    n_classes = n_classes + 1
    if class ~= pos_label then others[#others + 1] = tostring(class) end
  end
  if #others > 1 then
    table.sort(others)
    fail("metrics.f1: average = \"binary\" needs two classes, got %d: %s and %s; choose "
      .. "macro, micro or weighted", n_classes, tostring(pos_label), table.concat(others, ", "))
  end
  return counts[pos_label] and f1_of(counts[pos_label]) or 0
end

function averages.micro(counts, n)
  local both = 0
  for _, count in pairs(counts) do both = both + count.both end
  return both / n
end

function averages.macro(counts)
  local sum, n_classes = 0, 0
  for _, count in pairs(counts) do sum, n_classes = sum + f1_of(count), n_classes + 1 end
  return sum / n_classes
end

function averages.weighted(counts, n)
  local sum = 0
  for _, count in pairs(counts) do sum = sum + f1_of(count) * count.expected end
  return sum / n
end

local f1_arguments = arguments("metrics.f1", { average = "binary", pos_label = 1 })
classification.f1 = registry.define("redco.metrics.f1", [[
f1(predictions, references, {average = "binary", pos_label = 1}) -> number
Returns the harmonic mean of precision and recall of predicted classes, from 0 to 1.
average = "binary" scores the class pos_label of two classes. "macro" is the mean over all classes,
"weighted" the mean weighted by how often each class is the reference, and "micro" counts all
classes together. The arguments are lists of numbers or strings, or tensors.]],
function(predictions, references, options)
  local o = f1_arguments(options)
  predictions, references = two_lists("metrics.f1", predictions, references)
  local average = averages[o.average]
  if not average then
    fail("metrics.f1: average: expected binary, macro, micro or weighted, got %s",
      tostring(o.average))
  end
  return average(count_classes(predictions, references), #references, o.pos_label)
end)

classification.matthews_correlation = registry.define("redco.metrics.matthews_correlation", [[
matthews_correlation(predictions, references) -> number
Returns Matthews' correlation coefficient of predicted classes, from -1 to 1; 0 if all predictions
or all references are equal. The arguments are lists of numbers or strings, or tensors.]],
function(predictions, references)
  predictions, references = two_lists("metrics.matthews_correlation", predictions, references)
  local n, both, product, predicted, expected = #references, 0, 0, 0, 0
  for _, count in pairs(count_classes(predictions, references)) do
    both = both + count.both
    product = product + count.predicted * count.expected
    predicted, expected = predicted + count.predicted ^ 2, expected + count.expected ^ 2
  end
  local scale = (n * n - predicted) * (n * n - expected)
  return scale > 0 and (both * n - product) / math.sqrt(scale) or 0
end)

return classification
