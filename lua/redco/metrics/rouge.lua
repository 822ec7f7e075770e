--- ROUGE (C.-Y. Lin, "ROUGE: a package for automatic evaluation of summaries", 2004), with the
--- results of the Python package rouge_score 0.1.2.
local ffi = require "ffi"
local arguments = require "redco.arguments"
local examples = require "redco.metrics.examples"
local fail = require "redco.fail"
local ngrams = require "redco.metrics.ngrams"
local registry = require "redco.registry"
local stem = require "redco.metrics.porter_stemmer"
local unicode = require "redco.metrics.unicode"

--- A cache of stems. Short words are their own stems.
local function new_stems()
  return setmetatable({}, { __index = function(stems, word)
    stems[word] = #word > 3 and stem(word) or word
    return stems[word]
  end })
end

--- Returns the words of a text: runs of ASCII letters and digits, in lower case. `stems` may be
--- nil.
local function words_of(text, stems)
  local words = {}
  for word in unicode.lower(text):gmatch "[a-z0-9]+" do
    words[#words + 1] = stems and stems[word] or word
  end
  return words
end

local function lines_of(text, stems)
  local lines = {}
  for line in text:gmatch "[^\n]+" do lines[#lines + 1] = words_of(line, stems) end
  return lines
end

local function score(matches, n_predicted, n_reference)
  local precision, recall = matches / math.max(n_predicted, 1), matches / math.max(n_reference, 1)
  local sum = precision + recall
  return { precision = precision, recall = recall,
    fmeasure = sum > 0 and 2 * precision * recall / sum or 0 }
end

local function ngram_score(n, reference, prediction)
  local in_reference, n_reference = ngrams.count(reference.words, n)
  local in_prediction, n_predicted = ngrams.count(prediction.words, n)
  return score(ngrams.matches(in_reference, in_prediction), n_predicted, n_reference)
end

--- Returns the lengths of the longest common subsequences of all prefixes of two lists: entry
--- i * (#b + 1) + j is that of the first i of `a` and the first j of `b`.
local function lcs_lengths(a, b)
  local width = #b + 1
  local lengths = ffi.new("int32_t[?]", (#a + 1) * width)
  for i = 1, #a do
    local word, row = a[i], i * width
    for j = 1, #b do
      local at = row + j
      if word == b[j] then
        lengths[at] = lengths[at - width - 1] + 1
      else
        lengths[at] = math.max(lengths[at - width], lengths[at - 1])
      end
    end
  end
  return lengths, width
end

local function lcs_score(reference, prediction)
  local a, b = reference.words, prediction.words
  local lengths, width = lcs_lengths(a, b)
  return score(lengths[#a * width + #b], #b, #a)
end

--- Marks in `chosen` the positions of `reference` in its longest common subsequence with
--- `prediction`. If there are several, it takes the one that rouge_score finds.
local function mark_lcs(chosen, reference, prediction)
  local lengths, width = lcs_lengths(reference, prediction)
  local i, j = #reference, #prediction
  while i > 0 and j > 0 do
    if reference[i] == prediction[j] then
      chosen[i] = true
      i, j = i - 1, j - 1
    elseif lengths[i * width + j - 1] > lengths[(i - 1) * width + j] then
      j = j - 1
    else
      i = i - 1
    end
  end
end

--- Counts the words of a list of lines. Returns the counts and the total.
local function count_words(lines)
  local counts, total = {}, 0
  for _, words in ipairs(lines) do
    total = total + #words
    for _, word in ipairs(words) do counts[word] = (counts[word] or 0) + 1 end
  end
  return counts, total
end

--- Section 3.2 of the paper: the union of each reference line's common subsequences with all lines
--- of the prediction. No word counts more often than it occurs in either text.
local function summary_score(reference, prediction)
  local left_in_reference, n_reference = count_words(reference.lines)
  local left_in_prediction, n_predicted = count_words(prediction.lines)
  local matches = 0
  for _, line in ipairs(reference.lines) do
    local chosen = {}
    for _, predicted_line in ipairs(prediction.lines) do mark_lcs(chosen, line, predicted_line) end
    for i, word in ipairs(line) do
      local left = left_in_prediction[word] or 0
      if chosen[i] and left > 0 and left_in_reference[word] > 0 then
        matches = matches + 1
        left_in_prediction[word] = left - 1
        left_in_reference[word] = left_in_reference[word] - 1
      end
    end
  end
  return score(matches, n_predicted, n_reference)
end

local scorers = { rougeL = lcs_score, rougeLsum = summary_score }
for n = 1, 9 do
  scorers["rouge" .. n] = function(...) return ngram_score(n, ...) end
end

local function check_types(where, rouge_types)
  if type(rouge_types) ~= "table" or #rouge_types == 0 then
    fail("%s: rouge_types: expected a list of names", where)
  end
  for _, name in ipairs(rouge_types) do
    if not scorers[name] then
      fail("%s: rouge_types: expected rouge1 to rouge9, rougeL and rougeLsum, got %s", where,
        name)
    end
  end
end

--- Returns the scores of one prediction: for each type, that of the best reference.
local function scores_of(prediction, references, rouge_types, stems)
  local best = {}
  local predicted = { words = words_of(prediction, stems), lines = lines_of(prediction, stems) }
  for _, reference in ipairs(references) do
    local expected = { words = words_of(reference, stems), lines = lines_of(reference, stems) }
    for _, name in ipairs(rouge_types) do
      local found = scorers[name](expected, predicted)
      if not best[name] or found.fmeasure > best[name].fmeasure then best[name] = found end
    end
  end
  return best
end

local rouge = {}
local defaults = {
  use_stemmer = false, rouge_types = { "rouge1", "rouge2", "rougeL", "rougeLsum" },
}

local rouge_arguments = arguments("metrics.rouge", defaults)
rouge.rouge = registry.define("redco.metrics.rouge", [[
rouge(predictions, references, {use_stemmer = false, rouge_types = {"rouge1", "rouge2", "rougeL", "rougeLsum"}}) -> {rouge1, rouge2, rougeL, rougeLsum}
Returns the mean F-measures of predicted texts, from 0 to 1. Each entry of references is a string or
a list of strings; for each type, the best one counts. Words are runs of ASCII letters and digits,
in lower case. `use_stemmer` removes English suffixes. rougeLsum compares texts with one sentence on
each line.]],
function(predictions, references, options)
  local o = rouge_arguments(options)
  local lists = examples("metrics.rouge", predictions, references)
  check_types("metrics.rouge", o.rouge_types)
  local stems, means = o.use_stemmer and new_stems() or nil, {}
  for _, name in ipairs(o.rouge_types) do means[name] = 0 end
  for i, prediction in ipairs(predictions) do
    for name, found in pairs(scores_of(prediction, lists[i], o.rouge_types, stems)) do
      means[name] = means[name] + found.fmeasure
    end
  end
  for name, sum in pairs(means) do means[name] = sum / #predictions end
  return means
end)

local score_arguments = arguments("metrics.rouge_score", defaults)
rouge.rouge_score = registry.define("redco.metrics.rouge_score", [[
rouge_score(prediction, reference, {use_stemmer = false, rouge_types = {"rouge1", "rouge2", "rougeL", "rougeLsum"}}) -> {rouge1 = {precision, recall, fmeasure}, ...}
Returns the scores of one predicted text, from 0 to 1. Of a list of references, the one with the
best F-measure counts.]],
function(prediction, reference, options)
  local o = score_arguments(options)
  local lists = examples("metrics.rouge_score", { prediction }, { reference })
  check_types("metrics.rouge_score", o.rouge_types)
  return scores_of(prediction, lists[1], o.rouge_types, o.use_stemmer and new_stems() or nil)
end)

return rouge
