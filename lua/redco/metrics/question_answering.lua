--- Exact match and the F1 of words, as in the evaluation of SQuAD 1.1 (P. Rajpurkar et al.,
--- "SQuAD: 100,000+ questions for machine comprehension of text", 2016).
local examples = require "redco.metrics.examples"
local ngrams = require "redco.metrics.ngrams"
local registry = require "redco.registry"
local unicode = require "redco.metrics.unicode"

local articles = { a = true, an = true, the = true }

--- Returns the words of an answer, in lower case, without ASCII punctuation and articles.
local function words_of(answer)
  local text = unicode.plain_blanks((unicode.lower(answer):gsub("%p", "")))
  -- A character beyond ASCII that is neither a letter nor a number stays, and separates an article
  -- from the next word as a blank does. A zero byte on both sides marks it.
  text = text:gsub("[\194-\244][\128-\191]+", function(character)
    local class = unicode.class(character)
    return class ~= "L" and class ~= "N" and "\0" .. character .. "\0" or character
  end)
  text = text:gsub("[^%s%z\28-\31]+", function(word) return articles[word] and " " end)
  return unicode.split((text:gsub("%z", "")))
end

local function f1(prediction, reference)
  local predicted, n_predicted = ngrams.count(prediction, 1)
  local expected, n_expected = ngrams.count(reference, 1)
  local matches = ngrams.matches(predicted, expected)
  if matches == 0 then return 0 end
  local precision, recall = matches / n_predicted, matches / n_expected
  return 2 * precision * recall / (precision + recall)
end

local question_answering = {}

question_answering.exact_match = registry.define("redco.metrics.exact_match", [[
exact_match(predictions, references) -> number
Returns the fraction of predicted texts, from 0 to 1, that equal their reference, or one of a list
of references.]], function(predictions, references)
  local lists, matches = examples("metrics.exact_match", predictions, references), 0
  for i, prediction in ipairs(predictions) do
    for _, reference in ipairs(lists[i]) do
      if prediction == reference then
        matches = matches + 1
        break
      end
    end
  end
  return matches / #predictions
end)

question_answering.squad = registry.define("redco.metrics.squad", [[
squad(predictions, references) -> {exact_match, f1}
Returns the scores of short answers, from 0 to 100, as in SQuAD 1.1: case, punctuation and articles
are ignored; f1 compares words. Each entry of references is a string or a list of strings, of which
the best counts.]], function(predictions, references)
  local lists, exact_sum, f1_sum = examples("metrics.squad", predictions, references), 0, 0
  for i, prediction in ipairs(predictions) do
    local predicted, exact, best = words_of(prediction), 0, 0
    for _, reference in ipairs(lists[i]) do
      local expected = words_of(reference)
      if table.concat(predicted, " ") == table.concat(expected, " ") then exact = 1 end
      best = math.max(best, f1(predicted, expected))
    end
    exact_sum, f1_sum = exact_sum + exact, f1_sum + best
  end
  return { exact_match = 100 * exact_sum / #predictions, f1 = 100 * f1_sum / #predictions }
end)

return question_answering
