--- The tokens that the chat template of a tokenizer writes around messages.
local attempt = require "redco.check.attempt"
local decoded = require "redco.check.decoded"
local masking = require "redco.data.conversations.masking"
local without_position = require "redco.without_position"

local template = {}

local said, answered = "Zqxsaid", "Zqxanswered"
--- Whether the tokens have the header. Decoded texts may have other spaces than the template wrote.
function template.is_in(header, tokenizer, ids)
  local function squeezed(text) return (text:gsub("%s+", "")) end
  return squeezed(decoded(tokenizer, ids)):find(squeezed(header), 1, true) ~= nil
end

-- Returns the ends of two texts, a few bytes longer than what they have in common.
local function distinct_ends(a, b)
  local n = 0
  while n < math.min(#a, #b) and a:byte(-n - 1) == b:byte(-n - 1) do n = n + 1 end
  return a:sub(-n - 12), b:sub(-n - 12)
end

-- The first special token of a text, or nil.
local function first_special(tokenizer, text)
  for _, id in ipairs(tokenizer:encode(text, { add_special_tokens = false })) do
    if tokenizer:decode({ id }, { skip_special_tokens = true }) == "" then return id end
  end
end

local function rendered(tokenizer, messages)
  return tokenizer:apply_chat_template(messages, { tokenize = false })
end

--- Returns {user, assistant}, the ends of what stands before their messages; `first_token`;
--- `end_token`, which ends an answer; and `refusal`, why answers cannot be masked. The last two may
--- be nil.
function template.of(s)
  if not s.tokenizer then return nil, s:why "tokenizer" end
  if not s.tokenizer.chat_template then return nil, "the tokenizer has no chat template" end
  local messages = {
    { role = "user", content = said }, { role = "assistant", content = answered },
    { role = "user", content = said }, { role = "assistant", content = answered },
  }
  local ok, text = attempt(rendered, s.tokenizer, messages)
  if not ok then return nil, "the chat template fails: " .. without_position(text) end
  local before, between, after = text:match(("^(.-)%s(.-)%s(.-)%s"):format(said, answered, said))
  if not before or before == "" or between == "" then
    return nil, "the chat template marks no turns"
  end
  local masks, refusal = attempt(masking.encode, s.tokenizer, messages, "all", {})
  local user, assistant = distinct_ends(before, between)
  return {
    user = user, assistant = assistant,
    first_token = s.tokenizer:apply_chat_template(messages)[1],
    end_token = first_special(s.tokenizer, after),
    refusal = not masks and without_position(refusal) or nil,
  }
end

return template
