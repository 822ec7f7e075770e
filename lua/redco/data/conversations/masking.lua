--- Which tokens of a conversation the assistant says: by the template's marks, else by prefixes.
local fail = require "redco.fail"

local masking = {}

local function advice(turns)
  local marks = "a chat_template with {% generation %} marks needs none"
  return turns == "last" and "; " .. marks
    or "; turns = \"last\" needs only the last answer's prefix, and " .. marks
end

local function first_messages(messages, count)
  return { unpack(messages, 1, count) }
end

local function last_answer(messages)
  for i = #messages, 1, -1 do
    if messages[i].role == "assistant" then return i end
  end
end

local function is_prefix(ids, whole)
  for i = 1, #ids do
    if ids[i] ~= whole[i] then return false end
  end
  return true
end

-- Returns the characters of `text` around the byte `at`, on one line.
local function around(text, at)
  local function is_inside(i) return (text:byte(i) or 0) >= 128 and text:byte(i) < 192 end
  local first, last = math.max(1, at - 20), at + 20
  while is_inside(first) do first = first - 1 end
  while is_inside(last + 1) do last = last + 1 end
  return '"' .. text:sub(first, last):gsub("\n", "\\n") .. '"'
end

local function first_difference(a, b)
  local i = 1
  while i <= #a and a:byte(i) == b:byte(i) do i = i + 1 end
  return i
end

-- Raises the error that the first messages' tokens are no prefix of the whole conversation's.
local function refuse(tokenizer, messages, count, prompt, turns, variables)
  local function text(some, with_prompt)
    return tokenizer:apply_chat_template(some, { tokenize = false, variables = variables,
      add_generation_prompt = with_prompt })
  end
  local whole, part = text(messages, false), text(first_messages(messages, count), prompt)
  local what = prompt and ("the prompt after %d messages"):format(count)
    or ("the first %d messages"):format(count)
  local i = first_difference(part, whole)
  if i <= #part then
    fail("the chat template cannot be masked: it writes %s in another way if more follow: %s "
      .. "becomes %s%s", what, around(part, i), around(whole, i), advice(turns))
  end
  fail("the chat template cannot be masked: the tokens at the end of %s merge with those that "
    .. "follow, at %s%s", what, around(whole, i), advice(turns))
end

-- Returns the number of tokens of the first `count` messages, with or without the prompt for an
-- answer. The tokens must be a prefix of the whole conversation's.
local function prefix_length(tokenizer, messages, whole, count, prompt, turns, variables)
  local ids = tokenizer:apply_chat_template(first_messages(messages, count),
    { add_generation_prompt = prompt, variables = variables })
  if is_prefix(ids, whole) then return #ids end
  -- Some templates write eos_token after the last message, whichever that is.
  if not prompt and ids[#ids] == tokenizer.eos_token_id then
    ids[#ids] = nil
    if is_prefix(ids, whole) then return #ids end
  end
  refuse(tokenizer, messages, count, prompt, turns, variables)
end

local function mask_by_prefixes(tokenizer, messages, ids, turns, variables)
  local mask, last = {}, last_answer(messages)
  for i = 1, #ids do mask[i] = 0 end
  for i = 1, last do
    if messages[i].role == "assistant" and (turns == "all" or i == last) then
      local from = prefix_length(tokenizer, messages, ids, i - 1, true, turns, variables)
      local to = i == #messages and #ids
        or prefix_length(tokenizer, messages, ids, i, false, turns, variables)
      for t = from + 1, to do mask[t] = 1 end
    end
  end
  return mask
end

local function count_runs(mask)
  local runs = 0
  for i = 1, #mask do
    if mask[i] == 1 and mask[i - 1] ~= 1 then runs = runs + 1 end
  end
  return runs
end

-- Clears the first `count` runs of ones.
local function clear_runs(mask, count)
  local runs, before = 0, 0
  for i = 1, #mask do
    local now = mask[i]
    if now == 1 and before == 0 then runs = runs + 1 end
    if runs <= count then mask[i] = 0 end
    before = now
  end
end

--- Returns the tokens of a conversation and a list of 1 for those that the assistant says in all
--- turns or in its last one, else 0.
function masking.encode(tokenizer, messages, turns, variables)
  local options = { return_assistant_tokens_mask = true, variables = variables }
  local whole = tokenizer:apply_chat_template(messages, options)
  local ids, mask = whole.input_ids, whole.assistant_masks
  if not mask then return ids, mask_by_prefixes(tokenizer, messages, ids, turns, variables) end
  if turns == "last" then
    -- The marks of the messages before the last answer come first.
    local before = tokenizer:apply_chat_template(
      first_messages(messages, last_answer(messages) - 1), options)
    clear_runs(mask, count_runs(before.assistant_masks))
  end
  if count_runs(mask) == 0 then
    fail "the chat template marks no token of the conversation by {%% generation %%}"
  end
  return ids, mask
end

return masking
