--- Scores of documents, and what a task's score is: as lm-evaluation-harness defines them.
local bleu = require "redco.metrics.bleu".bleu
local chrf = require "redco.metrics.chrf".chrf
local fail = require "redco.fail"
local matthews_correlation = require "redco.metrics.classification".matthews_correlation
local names_of = require "redco.names_of"
local native = require "redco.native"
local new_random = require "redco.evaluate.python_random"
local python_text = require "redco.evaluate.python_text"
local ter = require "redco.metrics.ter".ter

local function mean(items)
  local sum = 0
  for _, item in ipairs(items) do sum = sum + item end
  return sum / #items
end

local function deviation(items)
  local centre, sum = mean(items), 0
  for _, item in ipairs(items) do sum = sum + (item - centre) ^ 2 end
  return math.sqrt(sum / (#items - 1))
end

-- Returns the weighted mean of pairs of a sum and its weight.
local function weighted_mean(items)
  local sum, weight = 0, 0
  for _, item in ipairs(items) do sum, weight = sum + item[1], weight + item[2] end
  return sum / weight
end

local function perplexity(items) return math.exp(-mean(items)) end

-- Returns the deviation of `score` over samples with replacement.
local function bootstrap(score, items, count)
  local n, per_seed, found = #items, math.min(1000, count), {}
  for seed = 0, math.floor(count / per_seed) - 1 do
    local random = new_random(seed).random
    for _ = 1, per_seed do
      local sample = {}
      for i = 1, n do sample[i] = items[math.floor(random() * n) + 1] end
      found[#found + 1] = score(sample)
    end
  end
  return deviation(found)
end

-- Returns the lists of what is right and what was answered.
local function unzipped(items)
  local golds, answers = {}, {}
  for i, item in ipairs(items) do golds[i], answers[i] = item[1], item[2] end
  return golds, answers
end

-- Returns the F1 score of choice 1; the choices are 0 and 1.
local function f1(items)
  local both, all = 0, 0
  for _, item in ipairs(items) do
    if item[1] > 1 or item[2] > 1 then
      fail "evaluate: the metric f1 is for tasks with two choices"
    end
    both, all = both + item[1] * item[2], all + item[1] + item[2]
  end
  return all > 0 and 2 * both / all or 0
end

local function mcc(items)
  local golds, answers = unzipped(items)
  return matthews_correlation(answers, golds)
end

-- Returns a function that scores a whole corpus of pairs of a text and an answer.
local function corpus(score, options)
  return function(items)
    local golds, answers = unzipped(items)
    return score(answers, golds, options).score
  end
end

local function brier_score(items)
  local sum = 0
  for _, item in ipairs(items) do
    for i, probability in ipairs(item[2]) do
      sum = sum + (probability - (i - 1 == item[1] and 1 or 0)) ^ 2
    end
  end
  return sum / #items
end

-- An aggregation whose standard error is that of at most `most` samples with replacement.
local function bootstrapped(score, most)
  return { score, function(items, count) return bootstrap(score, items, math.min(count, most)) end }
end

-- Functions of a task's items: one returns the score, the second, if any, its standard error.
local aggregations = {
  mean = { mean, function(items) return deviation(items) / math.sqrt(#items) end },
  perplexity = bootstrapped(perplexity, math.huge),
  f1 = bootstrapped(f1, math.huge),
  matthews_corrcoef = bootstrapped(mcc, math.huge),
  brier_score = { brier_score },
  bleu = bootstrapped(corpus(bleu), 100),
  chrf = bootstrapped(corpus(chrf), 100),
  ["chrf++"] = bootstrapped(corpus(chrf, { word_order = 2 }), 100),
  ter = bootstrapped(corpus(ter), 100),
  weighted_perplexity = { function(items) return math.exp(-weighted_mean(items)) end },
  bits_per_byte = { function(items) return -weighted_mean(items) / math.log(2) end },
}

-- Returns the index of the first largest of list[i] / divisors[i].
local function largest(list, divisors)
  local best, at = -math.huge, 1
  for i, value in ipairs(list) do
    local each = divisors and value / divisors[i] or value
    if each > best then best, at = each, i end
  end
  return at
end

-- Returns 1 if a choice is right, else 0.
local function accuracy(length)
  return function(found)
    local divisors
    if length then
      divisors = {}
      for i, choice in ipairs(found.choices) do divisors[i] = length(choice) end
    end
    local at = largest(found.logprobs, divisors)
    for _, right in ipairs(found.right) do
      if right == at then return 1 end
    end
    return 0
  end
end

-- Returns the only right choice, from 0.
local function right_choice(found)
  if #found.right > 1 then
    fail "evaluate: the metrics f1, mcc and brier_score are for tasks with one right choice"
  end
  return found.right[1] - 1
end

local function right_and_chosen(found)
  return { right_choice(found), largest(found.logprobs) - 1 }
end

local function right_and_probabilities(found)
  local most, sum, probabilities = math.max(unpack(found.logprobs)), 0, {}
  for i, logprob in ipairs(found.logprobs) do
    probabilities[i] = math.exp(logprob - most)
    sum = sum + probabilities[i]
  end
  for i, probability in ipairs(probabilities) do probabilities[i] = probability / sum end
  return { right_choice(found), probabilities }
end

local function right_and_answer(found)
  return { #found.right > 1 and found.right or found.right[1], found.answer }
end

local ascii_punctuation = "[!-/:-@%[-`{-~]"

-- Returns whether an answer equals one of the right texts.
local function exact_match(found, o)
  local function compared(text)
    for _, expression in ipairs(o.regexes_to_ignore or {}) do
      text = python_text.without(text, expression)
    end
    if o.ignore_case then text = native.lower_case(text) end
    if o.ignore_punctuation then text = text:gsub(ascii_punctuation, "") end
    if o.ignore_numbers then text = text:gsub("[0-9]", "") end
    return text
  end
  local answer = compared(found.answer)
  for _, right in ipairs(found.right) do
    if compared(right) == answer then return 1 end
  end
  return 0
end

local function per_word(found) return { found.logprob, found.n_words } end
local function per_byte(found) return { found.logprob, found.n_bytes } end

local text_options = { ignore_case = "boolean", ignore_punctuation = "boolean",
  ignore_numbers = "boolean", regexes_to_ignore = "table" }

-- By output_type and name: a function that returns the value of a document, the aggregation of the
-- values to a score, whether a higher score is better, and the options.
local table_of_metrics = {
  loglikelihood = {
    perplexity = { function(found) return found.logprob end, "perplexity", false },
    acc = { function(found) return found.is_greedy and 1 or 0 end, "mean", true },
  },
  loglikelihood_rolling = {
    word_perplexity = { per_word, "weighted_perplexity", false },
    byte_perplexity = { per_byte, "weighted_perplexity", false },
    bits_per_byte = { per_byte, "bits_per_byte", false },
  },
  multiple_choice = {
    acc = { accuracy(), "mean", true },
    acc_norm = { accuracy(python_text.length), "mean", true },
    acc_bytes = { accuracy(function(choice) return #choice end), "mean", true },
    exact_match = { function(found)
      for _, right in ipairs(found.right) do
        if found.greedy[right] then return 1 end
      end
      return 0
    end, "mean", true },
    f1 = { right_and_chosen, "f1", true },
    mcc = { right_and_chosen, "matthews_corrcoef", true },
    brier_score = { right_and_probabilities, "brier_score", false },
  },
  generate_until = {
    exact_match = { exact_match, "mean", true, text_options },
    bleu = { right_and_answer, "bleu", true }, chrf = { right_and_answer, "chrf", true },
    ["chrf++"] = { right_and_answer, "chrf++", true }, ter = { right_and_answer, "ter", false },
  },
}

local standard = {
  loglikelihood = { "perplexity", "acc" },
  loglikelihood_rolling = { "word_perplexity", "byte_perplexity", "bits_per_byte" },
  multiple_choice = { "acc", "acc_norm" },
  generate_until = { "exact_match" },
}

local function check_options(place, row, metric)
  local allowed = metric[4] or {}
  for name, value in pairs(row) do
    if name == "aggregation" then
      if value ~= metric[2] then
        fail("%s: aggregation: %s has '%s', got %s", place, row.metric, metric[2],
          native.describe(value))
      end
    elseif name ~= "metric" and name ~= "higher_is_better" and type(value) ~= allowed[name] then
      fail("%s: %s: %s", place, tostring(name), allowed[name]
        and ("expected a %s, got %s"):format(allowed[name], native.describe(value))
        or ("%s has no such option"):format(row.metric))
    end
  end
  for _, expression in ipairs(row.regexes_to_ignore or {}) do
    local ok, message = pcall(native.find_matches, expression, "")
    if not ok then fail("%s: regexes_to_ignore: %s", place, tostring(message)) end
  end
end

local metrics = {}

--- Returns the metrics of a task, a list of { name, value(found), score(items), stderr(items,
--- count), higher_is_better }.
function metrics.of(where, output_type, list)
  local known, chosen = table_of_metrics[output_type], {}
  if not list then
    list = {}
    for i, name in ipairs(standard[output_type]) do list[i] = { metric = name } end
  end
  for i, row in ipairs(list) do
    local place = ("%s: metric_list: entry %d"):format(where, i)
    local metric = type(row) == "table" and known[row.metric]
    if not metric then
      fail("%s: expected metric = one of %s for %s, got %s", place,
        table.concat(names_of(known), ", "), output_type,
        native.describe(type(row) == "table" and row.metric or row))
    end
    check_options(place, row, metric)
    local score, stderr = unpack(aggregations[metric[2]])
    chosen[i] = { name = row.metric, score = score, stderr = stderr, higher_is_better = metric[3],
      value = function(found) return metric[1](found, row) end }
  end
  if #chosen == 0 then fail("%s: metric_list is empty", where) end
  return chosen
end

return metrics
