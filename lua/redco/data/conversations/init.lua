--- redco.data.conversations: tokens and labels of conversations.
local arguments = require "redco.arguments"
local check_choice = require "redco.check_choice"
local dataset = require "redco.data.dataset"
local masking = require "redco.data.conversations.masking"
local messages_of = require "redco.data.conversations.forms"
local records = require "redco.data.conversations.records"
local registry = require "redco.registry"
local torch = require "redco.torch"

-- Returns the longest beginning of a conversation that ends in an answer and has at most
-- `max_length` tokens, or nil.
local function shortened(tokenizer, messages, max_length, variables)
  local answers = {}
  for i, message in ipairs(messages) do
    if message.role == "assistant" and i < #messages then answers[#answers + 1] = i end
  end
  local function first(count) return { unpack(messages, 1, count) } end
  local low, high = 0, #answers  -- the bounds of how many answers fit
  while low < high do
    local middle = math.ceil((low + high) / 2)
    local ids = tokenizer:apply_chat_template(first(answers[middle]), { variables = variables })
    if #ids <= max_length then low = middle else high = middle - 1 end
  end
  return low > 0 and first(answers[low]) or nil
end

local function has_trained_token(mask)
  for i = 2, #mask do
    if mask[i] == 1 then return true end
  end
  return false
end

-- Each returns tokens and mask of at most o.max_length tokens, or nil if nothing is left to learn.
local truncations = {
  drop = function() end,
  tokens = function(o, _, _, ids, mask)
    for i = #ids, o.max_length + 1, -1 do ids[i], mask[i] = nil, nil end
    return ids, mask
  end,
  messages = function(o, messages, variables)
    -- The last answer is not in the beginning of a conversation.
    if o.turns == "last" then return end
    local fewer = shortened(o.tokenizer, messages, o.max_length, variables)
    if not fewer then return end
    local ids, mask = masking.encode(o.tokenizer, fewer, o.turns, variables)
    if #ids <= o.max_length then return ids, mask end
  end,
}

-- Returns tokens, mask, and whether they were truncated; nil if the conversation is too long.
local function encode(record, o)
  local messages, variables = messages_of(record, o)
  local ids, mask = masking.encode(o.tokenizer, messages, o.turns, variables)
  local is_long = o.max_length ~= nil and #ids > o.max_length
  if is_long then ids, mask = truncations[o.truncation](o, messages, variables, ids, mask) end
  if not ids or not has_trained_token(mask) then return end
  return ids, mask, is_long
end

-- Returns for each token the next one if the assistant wrote the next one, else -100.
local function labels_of(ids, mask)
  local labels = {}
  for i = 1, #ids do labels[i] = mask[i + 1] == 1 and ids[i + 1] or -100 end
  return labels
end

-- Encodes all records. Tokens take 8 bytes each, with their labels.
local function encode_all(list, o)
  local tokens, labels, ends, total, truncated = {}, {}, {}, 0, 0
  local kept, found = records.encode("conversations", list, o,
    function(record) return encode(record, o) end,
    function(ids, mask, is_truncated)
      local n = #ends + 1
      tokens[n] = torch.tensor(ids, { dtype = "int32" })
      labels[n] = torch.tensor(labels_of(ids, mask), { dtype = "int32" })
      total = total + #ids
      ends[n] = total
      truncated = truncated + (is_truncated and 1 or 0)
    end)
  found.truncated = truncated
  return torch.cat(tokens), torch.cat(labels), torch.tensor(ends, { dtype = "int64" }),
    torch.tensor(kept, { dtype = "int64" }), found
end

local function statistics_of(tokens, labels, ends, found)
  local starts = torch.cat { torch.zeros({ 1 }, { dtype = "int64" }), ends:narrow(0, 0,
    ends:size(0) - 1) }
  local lengths = ends - starts
  return {
    count = ends:size(0), tokens = tokens:size(0), trained_tokens = labels:ne(-100):sum():item(),
    shortest = lengths:min():item(), median = lengths:median():item(),
    longest = lengths:max():item(),
    truncated = found.truncated, too_long = found.too_long, invalid = found.invalid,
  }
end

local function summary(s)
  return ("%d conversations of %d to %d tokens, half of them up to %d; of %d tokens %.1f %% are "
    .. "trained%s"):format(s.count, s.shortest, s.longest, s.median, s.tokens,
    100 * s.trained_tokens / s.tokens, records.counts(s))
end

local options = arguments("conversations", { turns = "all", truncation = "messages", roles = {},
  variables = {}, skip_invalid = false }, { "tokenizer", "max_length", "deployer" })

return registry.define("redco.data.conversations", [[
conversations(source: string or table or Dataset, {tokenizer: Tokenizer, turns = "all",
  max_length: integer = nil, truncation = "messages", roles: table = {}, variables: table = {},
  skip_invalid = false, deployer: Deployer = nil}) -> Dataset
Makes examples of conversations for training, through the chat template of the tokenizer. `source`
is a path of a file .jsonl, .json (a list) or .parquet, a list of paths, a list of records, or a
data set of them. A record is a list of messages, or a table of one of three forms. That of Hugging
Face's data sets is {messages = {{role, content, ...}, ...}}, with tool_calls, reasoning_content and
other fields that the template knows. ShareGPT's is {conversations = {{from, value}, ...}, system},
of human, gpt, function_call and observation. Alpaca's is {instruction, input, output, system,
history}. `tools` of a record, a list or JSON, and its chat_template_kwargs are variables of the
template, as is the table `variables` for all records. `roles` adds names of roles:
{ai = "assistant"}.

An example is {input_ids, labels}, int64 tensors [length]. A label is the token after it if the
assistant says that token, else -100. The {% generation %} blocks of the
template mark these tokens. Without such blocks, the tokens of the messages before an answer, with the
generation prompt, and those up to its end must begin the tokens of the whole conversation; what is
between them is the answer. An error says why a template cannot be masked so.
  turns: "all" trains on every answer, "last" only on the last one
  max_length: the most tokens of an example
  truncation: what happens to longer conversations. "messages" removes the last messages until the
    conversation fits, and leaves it out if no answer would be left, or with turns = "last"; "drop"
    leaves it out; "tokens" cuts it at max_length, even within a message.
  skip_invalid: leaves out records that are wrong, which otherwise are an error: without an answer
    or content, with roles in a wrong order, with images, or refused by the template
  deployer: logs lengths and the share of trained tokens

The data set has `statistics`: count, tokens, trained_tokens, shortest, median, longest, truncated,
too_long, invalid. `padding_collate` makes batches of it. `pack` with seq_len = max_length makes
rows of several conversations, each of which attends only to itself.]],
function(source, given)
  local o = options(given)
  records.check_options("conversations", o, { "messages", "tokens", "drop" })
  check_choice("conversations", "turns", o.turns, "all", "last")
  local list = records.open("conversations", source)
  local tokens, labels, ends, kept, found = encode_all(list, o)
  local statistics = statistics_of(tokens, labels, ends, found)
  if o.deployer then o.deployer:log_info(summary(statistics), { title = "Conversations" }) end
  return dataset.new(statistics.count, function(i)
    local first = i > 1 and ends[i - 2]:item() or 0
    local length = ends[i - 1]:item() - first
    return { input_ids = tokens:narrow(0, first, length):long(),
      labels = labels:narrow(0, first, length):long() }
  end, { statistics = statistics }, function(i)
    return dataset.place_of(list, kept[i - 1]:item())
  end)
end)
