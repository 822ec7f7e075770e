--- redco.data.preferences: tokens of prompts with two answers, or with one that is judged.
local arguments = require "redco.arguments"
local dataset = require "redco.data.dataset"
local fail = require "redco.fail"
local masking = require "redco.data.conversations.masking"
local messages_of = require "redco.data.conversations.forms"
local names_of = require "redco.names_of"
local native = require "redco.native"
local records = require "redco.data.conversations.records"
local registry = require "redco.registry"
local torch = require "redco.torch"
local without_position = require "redco.without_position"

local where = "preferences"

-- Returns a text or a list of messages as a list of messages.
local function list_of(record, name, role)
  local value = record[name]
  if type(value) == "string" then return { { role = role, content = value } } end
  if type(value) == "table" and #value > 0 then return value end
  if name == "prompt" and (value == nil or value == native.null) then return {} end
  fail("%s is %s, expected a text or a list of messages", name, native.describe(value))
end

-- Returns the tokens of a prompt, and those of an answer with its end.
local function encode_answer(record, name, o)
  local list = {}
  for _, message in ipairs(list_of(record, "prompt", "user")) do list[#list + 1] = message end
  for _, message in ipairs(list_of(record, name, "assistant")) do list[#list + 1] = message end
  local whole = { messages = list }
  for key, value in pairs(record) do
    if whole[key] == nil and type(key) == "string" then whole[key] = value end
  end
  local messages, variables = messages_of(whole, o)
  if messages[#messages].role ~= "assistant" then
    fail("%s ends with a message of the %s, expected one of the assistant", name,
      messages[#messages].role)
  end
  local ids, mask = masking.encode(o.tokenizer, messages, "last", variables)
  local first, last = 1, #ids
  while mask[first] == 0 do first = first + 1 end
  while mask[last] == 0 do last = last - 1 end
  return { unpack(ids, 1, first - 1) }, { unpack(ids, first, last) }
end

-- Returns the fields of a record that are answers.
local function answers_of(record)
  if type(record) ~= "table" then fail("is %s, expected a record", native.describe(record)) end
  if record.chosen ~= nil and record.rejected ~= nil then return { "chosen", "rejected" } end
  if record.completion == nil then
    fail("has neither chosen and rejected nor completion; it has %s",
      table.concat(names_of(record), ", "))
  end
  if type(record.label) ~= "boolean" then
    fail("its label is %s, expected a boolean: whether the completion is desirable",
      native.describe(record.label))
  end
  return { "completion" }
end

local function equal(a, b)
  if #a ~= #b then return false end
  for i = 1, #a do
    if a[i] ~= b[i] then return false end
  end
  return true
end

-- Returns an example, the number of its tokens with the longer answer, and whether answers were
-- cut; or nil and why it is left out.
local function encode(record, o, names)
  if #answers_of(record) ~= #names then
    fail("expected %s, as the records before have", table.concat(names, " and "))
  end
  local example = {}
  local length, is_cut = 0, false
  for _, name in ipairs(names) do
    local ok, prompt, answer = pcall(encode_answer, record, name, o)
    if not ok then
      fail("%s: %s", name, without_position(prompt))
    elseif example.prompt and not equal(example.prompt, prompt) then
      fail "the conversations of chosen and rejected differ before the last answer"
    end
    local room = o.max_length and o.max_length - #prompt or math.huge
    if #answer > room then
      if o.truncation == "drop" or room < 1 then return nil, "too_long" end
      answer, is_cut = { unpack(answer, 1, room) }, true
    end
    example.prompt, example[name] = prompt, answer
    length = math.max(length, #prompt + #answer)
  end
  if names[2] and equal(example.chosen, example.rejected) then return nil, "same" end
  for name, ids in pairs(example) do example[name] = torch.tensor(ids, { dtype = "int32" }) end
  if not names[2] then example.desirable = record.label end
  return example, length, is_cut
end

-- Returns the tokens of these fields of all examples as one tensor, and the ends of each,
-- [n, fields].
local function joined(examples, fields)
  local tokens, ends, total = {}, {}, 0
  for i, example in ipairs(examples) do
    ends[i] = {}
    for k, field in ipairs(fields) do
      total = total + example[field]:size(0)
      ends[i][k], tokens[#tokens + 1] = total, example[field]
    end
  end
  return torch.cat(tokens), torch.tensor(ends, { dtype = "int64" })
end

local function summary(s, names)
  return ("%d %s of %d to %d tokens with the prompt, half of them up to %d%s"):format(s.count,
    names[2] and "pairs" or "completions", s.shortest, s.longest, s.median, records.counts(s))
end

local options = arguments(where, { truncation = "drop", roles = {}, variables = {},
  skip_invalid = false }, { "tokenizer", "max_length", "deployer" })

return registry.define("redco.data.preferences", [[
preferences(source: string or table or Dataset, {tokenizer: Tokenizer, max_length: integer = nil,
  truncation = "drop", roles: table = {}, variables: table = {}, skip_invalid = false,
  deployer: Deployer = nil}) -> Dataset
Makes examples of preferences for `redco.preference.collate`, through the chat template of the
tokenizer. `source` is as in `redco.data.conversations`. A record is {prompt, chosen, rejected}, of
texts or lists of messages: a text is a message of the user or the assistant. Without a prompt, chosen
and rejected are whole conversations that differ in the last message. For `redco.preference.kto` it is
{prompt, completion, label}, where label says whether the completion is desirable. `tools` and
chat_template_kwargs of a record are variables of the template.

An example is {prompt, chosen, rejected}, or {prompt, completion, kl_completion, desirable}, in which
kl_completion is the completion of the example before: int64 tensors of tokens. Answers end with what
the template writes at the end of a message.
  max_length: the most tokens of a prompt with its longer answer
  truncation: what happens to longer ones. "drop" leaves the example out; "tokens" cuts its answers,
    and leaves it out if the prompt leaves no token for them
  roles, variables, skip_invalid: as in `redco.data.conversations`
  deployer: logs lengths and what is left out
Pairs whose answers are the same tokens, also once they are cut, are left out: they teach nothing.

The data set has `statistics`: count, shortest, median, longest, truncated, too_long, same, invalid.
Lengths are those of prompts with the longer answer.]],
function(source, given)
  local o = options(given)
  records.check_options(where, o, { "drop", "tokens" })
  local list = records.open(where, source)
  local examples, lengths, names, truncated = {}, {}, nil, 0
  local kept, found = records.encode(where, list, o, function(record)
    names = names or answers_of(record)
    return encode(record, o, names)
  end, function(example, length, is_cut)
    examples[#examples + 1], lengths[#lengths + 1] = example, length
    truncated = truncated + (is_cut and 1 or 0)
  end)
  local fields = { "prompt", unpack(names) }
  local tokens, ends = joined(examples, fields)
  local desirable = {}
  for i, example in ipairs(examples) do desirable[i] = example.desirable end
  lengths, kept = torch.tensor(lengths), torch.tensor(kept, { dtype = "int64" })
  local statistics = {
    count = #examples, shortest = lengths:min():item(), median = lengths:median():item(),
    longest = lengths:max():item(), truncated = truncated, too_long = found.too_long,
    same = found.same or 0, invalid = found.invalid,
  }
  if o.deployer then
    o.deployer:log_info(summary(statistics, names), { title = "Preferences" })
  end
  local flat = ends:flatten()
  local function field(i, k)  -- of example i, from 0
    local at = i * #fields + k - 1
    local first = at > 0 and flat[at - 1]:item() or 0
    return tokens:narrow(0, first, flat[at]:item() - first):long()
  end
  return dataset.new(statistics.count, function(i)
    local example = { desirable = desirable[i] }
    for k, name in ipairs(fields) do example[name] = field(i - 1, k) end
    if not names[2] then
      example.kl_completion = field((i - 2) % statistics.count, 2)
    end
    return example
  end, { statistics = statistics }, function(i)
    return dataset.place_of(list, kept[i - 1]:item())
  end)
end)
