--- BLEU (K. Papineni et al., "BLEU: a method for automatic evaluation of machine translation",
--- 2002), with the results of the Python package sacrebleu 2.6.0.
local arguments = require "redco.arguments"
local examples = require "redco.metrics.examples"
local fail = require "redco.fail"
local ngrams = require "redco.metrics.ngrams"
local registry = require "redco.registry"
local tokenizers = require "redco.metrics.bleu_tokenizers"
local unicode = require "redco.metrics.unicode"

local max_order = 4

local function new_words_of(o)
  local tokenize = tokenizers[o.tokenize]
  return function(text)
    if o.lowercase then text = unicode.lower(text) end
    return tokenize(unicode.strip_end(unicode.plain_blanks(text)))
  end
end

--- Returns the element of `lengths` nearest to `length`, the shorter one of two.
local function nearest_length(length, lengths)
  local nearest = lengths[1]
  for _, other in ipairs(lengths) do
    local difference, least = math.abs(other - length), math.abs(nearest - length)
    if difference < least or (difference == least and other < nearest) then nearest = other end
  end
  return nearest
end

--- Adds one example's counts to the sums of all.
local function add_example(sums, prediction, references)
  local lengths = {}
  for i, reference in ipairs(references) do lengths[i] = #reference end
  sums.sys_len = sums.sys_len + #prediction
  sums.ref_len = sums.ref_len + nearest_length(#prediction, lengths)
  for n = 1, max_order do
    local allowed = {}  -- how often an n-gram may match: its largest count in a reference
    for _, reference in ipairs(references) do
      for ngram, count in pairs((ngrams.count(reference, n))) do
        allowed[ngram] = math.max(allowed[ngram] or 0, count)
      end
    end
    local predicted, total = ngrams.count(prediction, n)
    sums.counts[n] = sums.counts[n] + ngrams.matches(predicted, allowed)
    sums.totals[n] = sums.totals[n] + total
  end
end

-- Smoothing methods if no n-gram matches, with the value each adds (B. Chen and C. Cherry, "A
-- systematic comparison of smoothing techniques for sentence-level BLEU", 2014).
local smooth_values = { none = 0, exp = 0, floor = 0.1, ["add-k"] = 1 }

--- Sets score, precisions and bp (the penalty for brevity) from the sums.
local function finish(sums, o)
  local counts, totals, precisions = sums.counts, sums.totals, { 0, 0, 0, 0 }
  local value = o.smooth_value or smooth_values[o.smooth_method]
  sums.score, sums.precisions, sums.bp = 0, precisions, 1
  if sums.sys_len < sums.ref_len then
    sums.bp = sums.sys_len > 0 and math.exp(1 - sums.ref_len / sums.sys_len) or 0
  end
  if math.max(unpack(counts)) == 0 then return sums end
  local halved, order = 1, max_order
  for n = 1, max_order do
    if o.smooth_method == "add-k" and n > 1 then
      counts[n], totals[n] = counts[n] + value, totals[n] + value
    end
    if totals[n] == 0 then break end
    if o.use_effective_order then order = n end
    local matches = counts[n]
    if matches == 0 and o.smooth_method == "exp" then
      halved = halved * 2
      matches = 1 / halved
    elseif matches == 0 and o.smooth_method == "floor" then
      matches = value
    end
    precisions[n] = 100 * matches / totals[n]
  end
  local sum = 0
  for n = 1, order do sum = sum + (precisions[n] > 0 and math.log(precisions[n]) or -9999999999) end
  sums.score = sums.bp * math.exp(sum / order)
  return sums
end

local function corpus_bleu(where, predictions, references, o)
  local lists = examples(where, predictions, references)
  if not tokenizers[o.tokenize] then
    fail("%s: tokenize: expected 13a, char, intl or none, got %s", where, o.tokenize)
  end
  if not smooth_values[o.smooth_method] then
    fail("%s: smooth_method: expected add-k, exp, floor or none, got %s", where,
      o.smooth_method)
  end
  local words_of = new_words_of(o)
  local sums = { sys_len = 0, ref_len = 0, counts = { 0, 0, 0, 0 }, totals = { 0, 0, 0, 0 } }
  for i, prediction in ipairs(predictions) do
    local words = {}
    for j, reference in ipairs(lists[i]) do words[j] = words_of(reference) end
    add_example(sums, words_of(prediction), words)
  end
  return finish(sums, o)
end

local bleu = {}

local bleu_arguments = arguments("metrics.bleu", { tokenize = "13a", smooth_method = "exp",
  lowercase = false, use_effective_order = false }, { "smooth_value" })
bleu.bleu = registry.define("redco.metrics.bleu", [[
bleu(predictions, references, {tokenize = "13a", smooth_method = "exp", smooth_value = nil,
  lowercase = false, use_effective_order = false}) -> {score, counts, totals, precisions, bp,
  sys_len, ref_len}
Returns the BLEU score of a corpus, from 0 to 100. Each entry of references is a string or a list of
strings. `tokenize` is 13a, intl, char or none. `smooth_method` is exp, floor, add-k or none.
`smooth_value` is the value that floor (default 0.1) and add-k (default 1) add.]],
function(predictions, references, options)
  return corpus_bleu("metrics.bleu", predictions, references, bleu_arguments(options))
end)

local sentence_arguments = arguments("metrics.sentence_bleu", { tokenize = "13a",
  smooth_method = "exp", lowercase = false, use_effective_order = true }, { "smooth_value" })
bleu.sentence_bleu = registry.define("redco.metrics.sentence_bleu", [[
sentence_bleu(prediction, reference, {tokenize = "13a", smooth_method = "exp", smooth_value = nil, lowercase = false, use_effective_order = true}) -> {score, ...}
Returns the BLEU score of one text against a reference or a list of references, with the entries of
`bleu`. With use_effective_order, n-grams longer than the text are left out.]],
function(prediction, reference, options)
  return corpus_bleu("metrics.sentence_bleu", { prediction }, { reference },
    sentence_arguments(options))
end)

return bleu
