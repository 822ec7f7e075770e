--- Accuracy, precision, recall, F1, Matthews' correlation and the confusion matrix of predicted
--- classes, with the results of scikit-learn.
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

local function ratio(count, of) return of > 0 and count / of or 0 end

-- The scores of one class.
local scores = {
  precision = function(count) return ratio(count.both, count.predicted) end,
  recall = function(count) return ratio(count.both, count.expected) end,
  f1 = function(count) return ratio(2 * count.both, count.predicted + count.expected) end,
}

local averages = {}

function averages.binary(name, counts, n, pos_label)
  local n_classes, others = 0, {}
  for class in pairs(counts) do
    n_classes = n_classes + 1
    if class ~= pos_label then others[#others + 1] = tostring(class) end
  end
  if #others > 1 then
    table.sort(others)
    fail("metrics.%s: average = \"binary\" needs two classes, got %d: %s and %s; choose "
      .. "macro, micro or weighted", name, n_classes, pos_label,
      table.concat(others, ", "))
  end
  return counts[pos_label] and scores[name](counts[pos_label]) or 0
end

-- Of all classes together, precision and recall are the accuracy.
function averages.micro(_, counts, n)
  local both = 0
  for _, count in pairs(counts) do both = both + count.both end
  return both / n
end

function averages.macro(name, counts)
  local sum, n_classes = 0, 0
  for _, count in pairs(counts) do
    sum, n_classes = sum + scores[name](count), n_classes + 1
  end
  return sum / n_classes
end

function averages.weighted(name, counts, n)
  local sum = 0
  for _, count in pairs(counts) do sum = sum + scores[name](count) * count.expected end
  return sum / n
end

local function define_score(name, what)
  local read = arguments("metrics." .. name, { average = "binary", pos_label = 1 })
  classification[name] = registry.define("redco.metrics." .. name, ([[
%s(predictions, references, {average = "binary", pos_label = 1}) -> number
%s
average = "binary" scores the class pos_label of two classes. "macro" is the mean over all classes,
"weighted" the mean weighted by how often each class is the reference, and "micro" counts all
classes together. The arguments are lists of numbers or strings, or tensors.]]):format(name, what),
  function(predictions, references, options)
    local o = read(options)
    predictions, references = two_lists("metrics." .. name, predictions, references)
    local average = averages[o.average]
    if not average then
      fail("metrics.%s: average: expected binary, macro, micro or weighted, got %s", name,
        o.average)
    end
    return average(name, count_classes(predictions, references), #references, o.pos_label)
  end)
end

define_score("f1", [[
Returns the harmonic mean of precision and recall of predicted classes, from 0 to 1.]])
define_score("precision", [[
Returns the fraction of the predictions of a class that are right, from 0 to 1; 0 without any.]])
define_score("recall", [[
Returns the fraction of the references of a class that are predicted, from 0 to 1; 0 without
any.]])

classification.balanced_accuracy = registry.define("redco.metrics.balanced_accuracy", [[
balanced_accuracy(predictions, references) -> number
Returns the mean recall over the classes of the references, from 0 to 1. The arguments are lists of
numbers or strings, or tensors.]], function(predictions, references)
  predictions, references = two_lists("metrics.balanced_accuracy", predictions, references)
  local sum, n_classes = 0, 0
  for _, count in pairs(count_classes(predictions, references)) do
    if count.expected > 0 then sum, n_classes = sum + scores.recall(count), n_classes + 1 end
  end
  return sum / n_classes
end)

-- Returns the sorted classes of a confusion matrix: the given ones, or those in the lists. The type
-- of a class comes first, because numbers and strings have no order.
local function classes_of(given, predictions, references)
  if given then return given end
  local classes, seen = {}, {}
  for _, list in ipairs { predictions, references } do
    for _, class in ipairs(list) do
      if not seen[class] then
        seen[class] = true
        classes[#classes + 1] = class
      end
    end
  end
  table.sort(classes, function(a, b)
    if type(a) ~= type(b) then return type(a) < type(b) end
    return a < b
  end)
  return classes
end

local matrix_arguments = arguments("metrics.confusion_matrix", {}, { "classes" })
classification.confusion_matrix = registry.define("redco.metrics.confusion_matrix", [[
confusion_matrix(predictions, references, {classes: list = nil}) -> Tensor [n, n], list
Returns how often each class, a row, was predicted as each class, a column, as int64, and the list
of classes. `classes` gives the classes and their order, and pairs with others do not count; by default
they are all classes that occur, sorted. The arguments are lists of numbers or strings, or
tensors.]],
function(predictions, references, options)
  local given = matrix_arguments(options).classes
  predictions, references = two_lists("metrics.confusion_matrix", predictions, references)
  if given then given = list_of("metrics.confusion_matrix", "classes", given) end
  local classes, place = classes_of(given, predictions, references), {}
  if #classes == 0 then fail "metrics.confusion_matrix: classes is an empty list" end
  for i, class in ipairs(classes) do
    if place[class] then
      fail("metrics.confusion_matrix: classes: %s is there twice", class)
    end
    place[class] = i
  end
  local counts = {}
  for i in ipairs(classes) do
    counts[i] = {}
    for j in ipairs(classes) do counts[i][j] = 0 end
  end
  for i, prediction in ipairs(predictions) do
    local row, column = place[references[i]], place[prediction]
    if row and column then counts[row][column] = counts[row][column] + 1 end
  end
  return torch.tensor(counts, { dtype = "int64" }), classes
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
