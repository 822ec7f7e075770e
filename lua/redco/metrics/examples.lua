--- Checks the predictions and references of a text metric.
local fail = require "redco.fail"

local function references_of(where, i, given)
  if type(given) == "string" then return { given } end
  if type(given) ~= "table" or #given == 0 then
    fail("%s: references[%d]: expected a string or a list of strings, got %s", where, i,
      type(given) == "table" and "an empty list" or type(given))
  end
  for j, text in ipairs(given) do
    if type(text) ~= "string" then
      fail("%s: references[%d][%d]: expected a string, got %s", where, i, j, type(text))
    end
  end
  return given
end

--- Checks the two lists of a call and returns each example's list of references.
local function examples(where, predictions, references)
  if type(predictions) ~= "table" or type(references) ~= "table" then
    fail("%s: expected a list of predictions and a list of references, got %s and %s", where,
      type(predictions), type(references))
  end
  if #predictions == 0 or #predictions ~= #references then
    fail("%s: expected as many predictions as references, and at least one, got %d and %d", where,
      #predictions, #references)
  end
  local lists = {}
  for i, prediction in ipairs(predictions) do
    if type(prediction) ~= "string" then
      fail("%s: predictions[%d]: expected a string, got %s", where, i, type(prediction))
    end
    lists[i] = references_of(where, i, references[i])
  end
  return lists
end

return examples
