--- Logits processors: functions that change the scores [rows, vocab_size] of the next token, given
--- the tokens so far, ids [rows, length]. They run in the order of this file, which is that of
--- transformers.
local fail = require "redco.fail"
local native = require "redco.native"
local torch = require "redco.torch"

local processors = {}

-- applies(o) returns whether the options enable a processor; make(o) returns the processor.
local function define(applies, make)
  processors[#processors + 1] = { applies = applies, make = make }
end

local function token_tensor(tokens, like)
  return torch.tensor(tokens, { dtype = "int64", device = like.device })
end

local function check_tokens(tokens, scores, name)
  for _, token in ipairs(tokens) do
    if token < 0 or token >= scores:size(1) then
      fail("model.generate: %s has the token %d, but the vocabulary has %d", name, token,
        scores:size(1))
    end
  end
end

-- Sets the scores of the listed tokens to -inf. Tokens outside the vocabulary are ignored.
local function without(scores, tokens)
  local known = {}
  for _, token in ipairs(tokens) do
    if token >= 0 and token < scores:size(1) then known[#known + 1] = token end
  end
  return #known == 0 and scores or scores:index_fill(1, token_tensor(known, scores), -math.huge)
end

-- Returns scores of 0 for the listed tokens and -inf for all others.
local function only(scores, tokens, name)
  check_tokens(tokens, scores, name)
  return torch.full_like(scores, -math.huge):index_fill(1, token_tensor(tokens, scores), 0)
end

-- Adds a number to the score of the last token of each sequence in the rows that end with the rest
-- of the sequence. `biases` is a list of {tokens, number}.
local function add_biases(biases, name)
  local by_sequence, sequences = {}, {}  -- among equal sequences, the last one counts
  local single, numbers = {}, {}
  for _, entry in ipairs(biases) do
    local key = table.concat(entry[1], ",")
    if not by_sequence[key] then sequences[#sequences + 1] = key end
    by_sequence[key] = entry
  end
  local longer = {}
  for _, key in ipairs(sequences) do
    local tokens, number = unpack(by_sequence[key])
    if #tokens == 1 then
      single[#single + 1], numbers[#numbers + 1] = tokens[1], number
    else
      longer[#longer + 1] = by_sequence[key]
    end
  end
  local of_every_row
  return function(scores, ids)
    if not of_every_row then
      for _, entry in ipairs(biases) do check_tokens(entry[1], scores, name) end
      of_every_row = torch.zeros_like(scores:narrow(0, 0, 1))
      if #single > 0 then
        of_every_row:select(0, 0):index_copy_(0, token_tensor(single, scores),
          torch.tensor(numbers, { dtype = scores.dtype, device = scores.device }))
      end
    end
    if #longer == 0 then return scores + of_every_row end
    local bias, length = of_every_row:expand(scores.shape):clone(), ids:size(1)
    for _, entry in ipairs(longer) do
      local tokens, number = unpack(entry)
      if #tokens <= length then
        local column = bias:select(1, tokens[#tokens])
        local start = token_tensor({ unpack(tokens, 1, #tokens - 1) }, ids)
        local matches = ids:narrow(1, length - #tokens + 1, #tokens - 1):eq(start):all(1)
        column:add_(torch.zeros_like(column):masked_fill(matches, number))
      end
    end
    return scores + bias
  end
end

define(function(o) return o.sequence_bias end, function(o)
  return add_biases(o.sequence_bias, "sequence_bias")
end)

local function penalized(scores, ids, penalty)
  local seen = scores:gather(1, ids)
  return scores:scatter(1, ids, torch.where(seen:lt(0), seen * penalty, seen / penalty))
end

local function encoder_ids(o, name)
  return o.encoder_ids or fail("model.generate: %s needs inputs.input_ids", name)
end

-- Raises the scores of the tokens of the prompt.
define(function(o) return o.encoder_repetition_penalty ~= 1 end, function(o)
  local prompt = encoder_ids(o, "encoder_repetition_penalty")
  return function(scores) return penalized(scores, prompt, 1 / o.encoder_repetition_penalty) end
end)

-- Keskar et al., 2019: lowers the scores of tokens that occurred before.
define(function(o) return o.repetition_penalty ~= 1 end, function(o)
  return function(scores, ids) return penalized(scores, ids, o.repetition_penalty) end
end)

-- OpenAI's: lowers the scores of tokens by their counts in the text after the prompt, and by their
-- presence there.
define(function(o) return o.frequency_penalty ~= 0 or o.presence_penalty ~= 0 end, function(o)
  return function(scores, ids)
    local n = ids:size(1) - o.prompt_length
    if n == 0 then return scores end
    local new = ids:narrow(1, o.prompt_length, n)
    local counts = torch.zeros_like(scores):scatter_add(1, new,
      torch.ones_like(new, { dtype = scores.dtype }))
    return scores - counts * o.frequency_penalty - counts:clamp_max(1) * o.presence_penalty
  end
end)

-- Returns the tokens that would complete an n-gram of `text` at the end of `row`.
local function repeating(text, row, n)
  local last = table.concat(row, ",", #row - n + 2, #row)
  local found = {}
  for i = 1, #text - n + 1 do
    if table.concat(text, ",", i, i + n - 2) == last then found[#found + 1] = text[i + n - 1] end
  end
  return found
end

-- Forbids n-grams of text_of(i, row) in row i.
local function without_ngrams(n, text_of)
  return function(scores, ids)
    if ids:size(1) + 1 < n then return scores end
    local banned = torch.zeros_like(scores, { dtype = "bool" })
    for i, row in ipairs(ids:tolist()) do
      local tokens = repeating(text_of(i, row), row, n)
      if #tokens > 0 then banned[i - 1]:index_fill_(0, token_tensor(tokens, scores), true) end
    end
    return scores:masked_fill(banned, -math.huge)
  end
end

define(function(o) return o.no_repeat_ngram_size > 0 end, function(o)
  return without_ngrams(o.no_repeat_ngram_size, function(_, row) return row end)
end)

define(function(o) return o.encoder_no_repeat_ngram_size > 0 end, function(o)
  local prompts = encoder_ids(o, "encoder_no_repeat_ngram_size"):tolist()
  local n_rows_each = math.max(o.num_beams, o.num_return_sequences)
  return without_ngrams(o.encoder_no_repeat_ngram_size, function(i)
    return prompts[math.floor((i - 1) / n_rows_each) + 1]
  end)
end)

-- A bad word that is an end token stays allowed.
define(function(o) return o.bad_words_ids end, function(o)
  local is_end, biases = {}, {}
  for _, token in ipairs(o.eos) do is_end[token] = true end
  for _, tokens in ipairs(o.bad_words_ids) do
    if #tokens > 1 or not is_end[tokens[1]] then biases[#biases + 1] = { tokens, -math.huge } end
  end
  return add_biases(biases, "bad_words_ids")
end)

define(function(o) return o.min_length > 0 and #o.eos > 0 end, function(o)
  return function(scores, ids)
    return ids:size(1) >= o.min_length and scores or without(scores, o.eos)
  end
end)

define(function(o) return o.forced_bos_token_id end, function(o)
  return function(scores, ids)
    if ids:size(1) > 1 then return scores end
    return only(scores, { o.forced_bos_token_id }, "forced_bos_token_id")
  end
end)

define(function(o) return #o.forced_eos > 0 end, function(o)
  return function(scores, ids)
    if ids:size(1) < o.max_length - 1 then return scores end
    return only(scores, o.forced_eos, "forced_eos_token_id")
  end
end)

local largest = 3.4028234663852886e38  -- of float32

define(function(o) return o.remove_invalid_values end, function()
  return function(scores)
    return scores:nan_to_num { nan = 0, posinf = largest, neginf = -largest }
  end
end)

-- Raises the scores of end tokens more with each token after the first `start` new ones.
define(function(o) return o.exponential_decay_length_penalty end, function(o)
  local start, factor = unpack(o.exponential_decay_length_penalty)
  return function(scores, ids)
    local n = ids:size(1) - start - o.prompt_length
    if n <= 0 then return scores end
    local eos = token_tensor(o.eos, scores)
    local now = scores:index_select(1, eos)
    return scores:index_copy(1, eos, now + now:abs() * (factor ^ n - 1))
  end
end)

define(function(o) return o.suppress_tokens end, function(o)
  return function(scores) return without(scores, o.suppress_tokens) end
end)

define(function(o) return o.begin_suppress_tokens end, function(o)
  local first = o.prompt_length
  if first == 1 and o.forced_bos_token_id then first = 2 end
  return function(scores, ids)
    return ids:size(1) == first and without(scores, o.begin_suppress_tokens) or scores
  end
end)

-- A family's own.
define(function(o) return o.rule end, function(o)
  return function(scores, ids) return o.rule(scores, ids, o.prompt_length) end
end)

-- The caller's.
define(function(o) return o.logits_processor end, function(o)
  local list = type(o.logits_processor) == "table" and o.logits_processor or { o.logits_processor }
  local facts = { prompt_length = o.prompt_length, eos_token_id = o.eos }
  return function(scores, ids)
    for _, process in ipairs(list) do
      local processed = process(ids, scores, facts)
      if not torch.is_tensor(processed) or table.concat(processed.shape, " ")
        ~= table.concat(scores.shape, " ") then
        fail("model.generate: logits_processor returned %s, expected scores [%d, %d]",
          native.describe(processed), unpack(scores.shape))
      end
      scores = processed
    end
    return scores
  end
end)

-- The processors below apply to sampling.

define(function(o) return o.do_sample and o.temperature ~= 1 end, function(o)
  return function(scores) return scores / o.temperature end
end)

define(function(o) return o.do_sample and o.top_k > 0 end, function(o)
  return function(scores)
    local best = scores:topk(math.min(o.top_k, scores:size(1)), 1)
    return scores:masked_fill(scores:lt(best:narrow(1, -1, 1)), -math.huge)
  end
end)

-- Holtzman et al., 2019: keeps the fewest tokens whose probabilities sum to top_p.
define(function(o) return o.do_sample and o.top_p < 1 end, function(o)
  return function(scores)
    local sorted, places = scores:sort(1)
    local rest = sorted:softmax(-1):cumsum(-1):le(1 - o.top_p)
    rest:narrow(1, -1, 1):fill_(false)
    return scores:masked_fill(torch.zeros_like(rest):scatter(1, places, rest), -math.huge)
  end
end)

-- Nguyen et al., 2024: keeps tokens at least min_p times as probable as the most probable one.
define(function(o) return o.do_sample and o.min_p end, function(o)
  return function(scores)
    local probs = scores:softmax(-1)
    local is_rest = probs:lt(probs:amax(-1, true) * o.min_p)
    return scores:masked_fill(is_rest, -math.huge)
  end
end)

-- Meister et al., 2022: keeps tokens whose information is nearest to the expected information.
define(function(o) return o.do_sample and o.typical_p < 1 end, function(o)
  return function(scores)
    local log_probs = scores:log_softmax(-1)
    local entropy = (log_probs * log_probs:exp()):nansum({ -1 }, true):neg()
    local sorted, places = (log_probs:neg() - entropy):abs():sort(1)
    local mass = scores:gather(1, places):softmax(-1):cumsum(-1)
    local last = mass:lt(o.typical_p):sum(1, true):clamp_max(sorted:size(1) - 1)
    local rest = sorted:gt(sorted:gather(1, last))
    rest:narrow(1, 0, 1):fill_(false)
    return scores:masked_fill(torch.zeros_like(rest):scatter(1, places, rest), -math.huge)
  end
end)

-- Removes tokens less probable than `cutoff`, except the most probable one.
local function without_improbable(scores, probs, cutoff)
  local best = scores:amax(-1, true)
  return scores:masked_fill(probs:lt(cutoff):logical_and(scores:lt(best)), -math.huge)
end

-- Hewitt et al., 2022: epsilon sampling, and eta sampling.
define(function(o) return o.do_sample and o.epsilon_cutoff > 0 and o.epsilon_cutoff < 1 end,
  function(o)
    return function(scores)
      return without_improbable(scores, scores:softmax(-1), o.epsilon_cutoff)
    end
  end)

define(function(o) return o.do_sample and o.eta_cutoff > 0 and o.eta_cutoff < 1 end, function(o)
  return function(scores)
    local epsilon = torch.tensor(o.eta_cutoff, { dtype = "float32", device = scores.device })
    local log_probs, probs = scores:log_softmax(-1), scores:softmax(-1)
    local entropy = (log_probs:clamp(-largest) * probs):sum(-1, true):neg()
    return without_improbable(scores, probs,
      torch.minimum(epsilon, epsilon:sqrt() * entropy:neg():exp()))
  end
end)

define(function(o) return o.renormalize_logits end, function()
  return function(scores) return scores:log_softmax(-1) end
end)

--- Returns the processor for the options of a call. It also reads `o.prompt_length`, `o.rule`, a
--- function(scores, ids, prompt_length), and `o.encoder_ids` [prompts, length].
return function(o)
  local used = {}
  for _, processor in ipairs(processors) do
    if processor.applies(o) then used[#used + 1] = processor.make(o) end
  end
  return function(scores, ids)
    if #used > 0 then scores = scores:full() end
    for _, process in ipairs(used) do scores = process(scores, ids) end
    return scores
  end
end
