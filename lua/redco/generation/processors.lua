--- What changes the scores of the next token: functions of scores [rows, vocab_size] and of the
--- tokens so far, ids [rows, length]. They run in the order of this file, which is Hugging Face's.
local torch = require "redco.torch"

local processors = {}

local function define(applies, process)
  processors[#processors + 1] = { applies = applies, process = process }
end

-- -inf for the tokens of a list.
local function without(scores, tokens)
  return scores:index_fill(1, torch.tensor(tokens, { dtype = "int64" }), -math.huge)
end

-- 0 for one token and -inf for all others.
local function only(scores, token)
  local all = torch.full_like(scores, -math.huge)
  all:narrow(1, token, 1):zero_()
  return all
end

-- Keskar et al., 2019: what is there already counts less.
define(function(o) return o.repetition_penalty ~= 1 end, function(scores, ids, o)
  local seen = scores:gather(1, ids)
  local less = torch.where(seen:lt(0), seen * o.repetition_penalty, seen / o.repetition_penalty)
  return scores:scatter(1, ids, less)
end)

-- The tokens that would end an n-gram which the row has already.
local function repeating(row, n)
  local last = table.concat(row, ",", #row - n + 2, #row)
  local tokens = {}
  for i = 1, #row - n + 1 do
    if table.concat(row, ",", i, i + n - 2) == last then tokens[#tokens + 1] = row[i + n - 1] end
  end
  return tokens
end

define(function(o) return o.no_repeat_ngram_size > 0 end, function(scores, ids, o)
  local n = o.no_repeat_ngram_size
  if ids:size(1) < n then return scores end
  local banned = torch.zeros(scores.shape, { dtype = "bool" })
  for i, row in ipairs(ids:tolist()) do
    local tokens = repeating(row, n)
    if #tokens > 0 then
      banned[i - 1]:index_fill_(0, torch.tensor(tokens, { dtype = "int64" }), true)
    end
  end
  return scores:masked_fill(banned, -math.huge)
end)

define(function(o) return o.min_length > 0 and #o.eos > 0 end, function(scores, ids, o)
  if ids:size(1) >= o.min_length then return scores end
  return without(scores, o.eos)
end)

define(function(o) return o.forced_bos_token_id end, function(scores, ids, o)
  if ids:size(1) > 1 then return scores end
  return only(scores, o.forced_bos_token_id)
end)

define(function(o) return o.forced_eos_token_id end, function(scores, ids, o)
  if ids:size(1) < o.max_length - 1 then return scores end
  return only(scores, o.forced_eos_token_id)
end)

define(function(o) return o.do_sample and o.temperature ~= 1 end, function(scores, _, o)
  return scores / o.temperature
end)

define(function(o) return o.do_sample and o.top_k > 0 end, function(scores, _, o)
  local best = scores:topk(math.min(o.top_k, scores:size(1)), 1)
  return scores:masked_fill(scores:lt(best:narrow(1, -1, 1)), -math.huge)
end)

-- Holtzman et al., 2019: the fewest tokens whose probabilities make up top_p.
define(function(o) return o.do_sample and o.top_p < 1 end, function(scores, _, o)
  local sorted, places = scores:sort(1)
  local rest = sorted:softmax(-1):cumsum(-1):le(1 - o.top_p)
  rest:narrow(1, -1, 1):fill_(false)
  return scores:masked_fill(torch.zeros_like(rest):scatter(1, places, rest), -math.huge)
end)

--- The function of scores and ids that a call's options ask for.
return function(o)
  local used = {}
  for _, processor in ipairs(processors) do
    if processor.applies(o) then used[#used + 1] = processor.process end
  end
  return function(scores, ids)
    for _, process in ipairs(used) do scores = process(scores, ids, o) end
    return scores
  end
end
