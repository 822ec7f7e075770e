--- One of the answers of a request: the text of its tokens, as they come.
local calls = require "redco.serve.calls"
local new_stops = require "redco.talk.stops"

local Choice = {}
Choice.__index = Choice

-- Returns the number of characters of a text.
local function n_characters(text) return #text:gsub("[\128-\191]", "") end

--- `index` is its number in the answer, `stops` a list of strings. With a format of calls, they
--- become `tool_calls` instead of text.
local function new_choice(tokenizer, index, stops, call_format)
  local push, finish = new_stops(stops)
  local push_call, finish_calls
  if call_format then push_call, finish_calls = calls.reader(call_format) end
  return setmetatable({
    push_call = push_call, finish_calls = finish_calls,
    index = index, decoder = tokenizer:decode_stream { skip_special_tokens = true },
    push = push, rest = finish, is_stopped = false,
    n_tokens = 0,
    entries = {},  -- tokens that are not shown yet, each with the length of the text before it
    length = 0,  -- of the text of all tokens, and of what is shown
    shown = 0, n_shown = 0,  -- in bytes, and in characters
  }, Choice)
end

-- Returns the text that can be shown now, and the tokens that are part of it.
function Choice:show(text, is_stopped)
  local before, entries = self.n_shown, {}
  self.shown, self.n_shown = self.shown + #text, before + n_characters(text)
  self.is_stopped = self.is_stopped or is_stopped
  while self.entries[1] and self.entries[1].start < self.shown do
    entries[#entries + 1] = table.remove(self.entries, 1)
    entries[#entries].offset = before
    before = before + n_characters(entries[#entries].piece)
  end
  return text, entries
end

--- Takes a token; `logprob` and `top`, a list of {token, logprob}, are kept for the answer.
function Choice:take(token, logprob, top)
  local piece = self.decoder:step(token)
  self.n_tokens = self.n_tokens + 1
  table.insert(self.entries,
    { token = token, logprob = logprob, top = top, start = self.length, piece = piece })
  self.length = self.length + #piece
  local text, is_stopped = self.push(piece)
  return self:show(self.push_call and self.push_call(text) or text, is_stopped)
end

--- Returns the same for the end of the text.
function Choice:finish()
  local text, is_stopped = self.push(self.decoder:finish())
  text = text .. self.rest()
  if self.push_call then
    text = self.push_call(text)
    local rest, found = self.finish_calls()
    text, self.tool_calls = text .. rest, found
  end
  return self:show(text, is_stopped)
end

return new_choice
