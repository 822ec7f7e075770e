--- chrF (M. Popovic, "chrF: character n-gram F-score for automatic MT evaluation", 2015), with the
--- results of the Python package sacrebleu 2.6.0.
local arguments = require "redco.arguments"
local examples = require "redco.metrics.examples"
local ngrams = require "redco.metrics.ngrams"
local registry = require "redco.registry"
local unicode = require "redco.metrics.unicode"

--- Splits a text into words. A punctuation mark at the end of a word, or else at its start, is
--- separated.
local function words_of(text)
  local words = {}
  for _, word in ipairs(unicode.split(text)) do
    local head, tail = word:match "^(.+)(%p)$"
    if not head then head, tail = word:match "^(%p)(.+)$" end
    words[#words + 1] = head or word
    words[#words + 1] = tail
  end
  return words
end

--- Returns a list of {counts, total}: first for n-grams of characters, without white space, then
--- for n-grams of words.
local function all_ngrams(text, o)
  text = unicode.plain_blanks(o.lowercase and unicode.lower(text) or text)
  local found = {}
  local characters = unicode.characters(table.concat(unicode.split(text)))
  for n = 1, o.char_order do found[n] = { ngrams.count(characters, n) } end
  local words = words_of(text)
  for n = 1, o.word_order do found[o.char_order + n] = { ngrams.count(words, n) } end
  return found
end

--- Returns, for each order, the numbers of n-grams of the prediction, of the reference, and of
--- both.
local function statistics_of(prediction, reference)
  local statistics = {}
  for i, predicted in ipairs(prediction) do
    local expected = reference[i]
    statistics[i] = { expected[2] > 0 and predicted[2] or 0, expected[2],
      ngrams.matches(predicted[1], expected[1]) }
  end
  return statistics
end

local function f_score(statistics, beta)
  local precision, recall, orders = 0, 0, 0
  for _, order in ipairs(statistics) do
    local n_predicted, n_reference, n_matches = unpack(order)
    if n_predicted > 0 and n_reference > 0 then
      precision = precision + n_matches / n_predicted
      recall = recall + n_matches / n_reference
      orders = orders + 1
    end
  end
  if precision + recall == 0 then return 0 end
  precision, recall = precision / orders, recall / orders
  local factor = beta ^ 2
  return 100 * ((1 + factor) * precision * recall / (factor * precision + recall))
end

local chrf_arguments = arguments("metrics.chrf",
  { char_order = 6, word_order = 0, beta = 2, lowercase = false })

local chrf = {}

chrf.chrf = registry.define("redco.metrics.chrf", [[
chrf(predictions, references, {char_order = 6, word_order = 0, beta = 2, lowercase = false}) -> {score, char_order, word_order, beta}
Returns the F-score of the character n-grams of a corpus, from 0 to 100. Recall has `beta` times the
weight of precision. Each entry of references is a string or a list of strings, of which the best
counts. With word_order = 2 it is chrF++.]], function(predictions, references, options)
  local o = chrf_arguments(options)
  local lists = examples("metrics.chrf", predictions, references)
  local sums = {}
  for i = 1, o.char_order + o.word_order do sums[i] = { 0, 0, 0 } end
  for i, prediction in ipairs(predictions) do
    local predicted, best, best_score = all_ngrams(prediction, o), nil, -1
    for _, reference in ipairs(lists[i]) do
      local statistics = statistics_of(predicted, all_ngrams(reference, o))
      local score = f_score(statistics, o.beta)
      if score > best_score then best, best_score = statistics, score end
    end
    for n, order in ipairs(best) do
      for k = 1, 3 do sums[n][k] = sums[n][k] + order[k] end
    end
  end
  return { score = f_score(sums, o.beta), char_order = o.char_order, word_order = o.word_order,
    beta = o.beta }
end)

return chrf
