--- The JSON of answers, whole and in parts, for both endpoints.
local native = require "redco.native"
local texts_of = require "redco.generation.grammar".texts_of

local null = native.null
local empty_list = native.json_decode("", "[]")

-- The logarithm that stands for a probability of 0, which JSON has no number for.
local function finite(logprob) return math.max(logprob, -9999) end

-- Returns a cache of the texts of tokens; `of_tokens` has their bytes. A decoded text may lack the
-- space at its beginning, so each token is decoded after another one.
local function token_texts(tokenizer)
  local first = tokenizer:encode("a", { add_special_tokens = false })
  local n_first = #tokenizer:decode(first)
  local after, n = {}, #first
  for i, token in ipairs(first) do after[i] = token end
  return setmetatable({ of_tokens = texts_of(tokenizer) }, { __index = function(texts, token)
    after[n + 1] = token
    texts[token] = tokenizer:decode(after):sub(n_first + 1)
    return texts[token]
  end })
end

local function entry_of(texts, token, logprob)
  local bytes = texts.of_tokens:bytes(token)  -- none of a special token
  if bytes == "" then bytes = texts[token] end
  return { token = texts[token], logprob = finite(logprob),
    bytes = bytes == "" and empty_list or { bytes:byte(1, -1) } }
end

-- `n_top` of a request is the number of most likely tokens, nil without log-probabilities.
local function chat_logprobs(texts, entries, n_top)
  if not n_top then return null end
  local content = {}
  for i, entry in ipairs(entries) do
    local shown = entry_of(texts, entry.token, entry.logprob)
    shown.top_logprobs = n_top == 0 and empty_list or {}
    for j = 1, n_top do shown.top_logprobs[j] = entry_of(texts, unpack(entry.top[j])) end
    content[i] = shown
  end
  return { content = #content > 0 and content or empty_list, refusal = null }
end

local function completion_logprobs(texts, entries, n_top)
  if not n_top then return null end
  local all = { tokens = {}, token_logprobs = {}, top_logprobs = {}, text_offset = {} }
  for i, entry in ipairs(entries) do
    all.tokens[i] = texts[entry.token]
    all.token_logprobs[i] = finite(entry.logprob)
    all.text_offset[i] = entry.offset
    local top = { [texts[entry.token]] = finite(entry.logprob) }
    for j = 1, n_top do top[texts[entry.top[j][1]]] = finite(entry.top[j][2]) end
    all.top_logprobs[i] = n_top > 0 and top or null
  end
  for name, list in pairs(all) do
    if #list == 0 then all[name] = empty_list end
  end
  if n_top == 0 then all.top_logprobs = null end
  return all
end

local endpoints = {
  chat = {
    prefix = "chatcmpl-", whole = "chat.completion", part = "chat.completion.chunk",
    logprobs = chat_logprobs,
    content = function(text, tool_calls)
      if tool_calls and not text:find "%S" then text = null end
      return { message = { role = "assistant", content = text, refusal = null,
        tool_calls = tool_calls } }
    end,
    first = { delta = { role = "assistant", content = "" } },
    piece = function(text) return { delta = { content = text } } end,
    last = { delta = native.json_decode("", "{}") },
  },
  completions = {
    prefix = "cmpl-", whole = "text_completion", part = "text_completion",
    logprobs = completion_logprobs,
    content = function(text) return { text = text } end,
    piece = function(text) return { text = text } end,
    last = { text = "" },
  },
}

local Answers = {}
Answers.__index = Answers

local function with(t, fields)
  local all = {}
  for key, value in pairs(t) do all[key] = value end
  for key, value in pairs(fields) do all[key] = value end
  return all
end

function Answers:envelope(object, fields)
  return native.json_encode("answer", with({
    id = self.id, object = object, created = self.created, model = self.model,
    system_fingerprint = "redco-lua-" .. native.version,
  }, fields))
end

-- Returns the calls of a choice, with ids, or nil. Parts of a stream also number them.
function Answers:calls(choice, is_numbered)
  if not choice.tool_calls then return end
  local all = {}
  for i, call in ipairs(choice.tool_calls) do
    all[i] = {
      id = ("call_%s_%d_%d"):format(self.id:match "%-(.*)", choice.index, i), type = "function",
      ["function"] = call, index = is_numbered and i - 1 or nil,
    }
  end
  return all
end

--- The whole answer. A choice has `text`, `shown`, the list of its tokens, and `finish_reason`.
function Answers:whole(choices, usage)
  local all = {}
  for i, choice in ipairs(choices) do
    all[i] = with(self.endpoint.content(choice.text, self:calls(choice)), {
      index = choice.index, finish_reason = choice.finish_reason,
      logprobs = self.endpoint.logprobs(self.texts, choice.shown, self.n_top),
    })
  end
  return self:envelope(self.endpoint.whole, { choices = all, usage = usage })
end

function Answers:part(choice, content, logprobs)
  return self:envelope(self.endpoint.part, {
    choices = { with(content, { index = choice.index, logprobs = logprobs or null,
      finish_reason = choice.finish_reason or null }) },
    usage = self.has_usage and null or nil,
  })
end

--- Parts of an answer: the first, if the endpoint has one; a piece of text with its tokens; the
--- tool calls, if there are any; the end, with the reason; and the numbers of tokens.
function Answers:first(choice)
  return self.endpoint.first and self:part(choice, self.endpoint.first)
end
function Answers:piece(choice, text, tokens)
  return self:part(choice, self.endpoint.piece(text),
    self.endpoint.logprobs(self.texts, tokens, self.n_top))
end
function Answers:tool_calls(choice)
  local found = self:calls(choice, true)
  return found and self:part(choice, { delta = { tool_calls = found } })
end
function Answers:last(choice) return self:part(choice, self.endpoint.last) end
function Answers:usage(usage)
  return self:envelope(self.endpoint.part, { choices = empty_list, usage = usage })
end

local n_answers = 0

--- Answers of the endpoint "chat" or "completions". `o` has `model`, its name, `texts` of tokens,
--- `n_top` and `has_usage`, whether parts have room for the numbers of tokens.
local function new_answers(endpoint, o)
  n_answers = n_answers + 1
  local self = setmetatable(with(o, {
    endpoint = endpoints[endpoint], created = os.time(),
  }), Answers)
  self.id = ("%s%x%04x"):format(self.endpoint.prefix, self.created, n_answers)
  return self
end

return { new = new_answers, token_texts = token_texts }
