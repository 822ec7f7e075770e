--- Records of data sets of conversations, in the forms that are common, as messages.
local fail = require "redco.fail"
local names_of = require "redco.names_of"
local native = require "redco.native"
local without_position = require "redco.without_position"

local function is_list(value) return type(value) == "table" and #value > 0 end

-- The role of chat templates for each name that data sets use. A `function_call` is a message of
-- the assistant that calls tools.
local roles = {
  system = "system", developer = "developer", user = "user", assistant = "assistant", tool = "tool",
  human = "user", prompter = "user",
  gpt = "assistant", chatgpt = "assistant", bot = "assistant", chatbot = "assistant",
  model = "assistant",
  observation = "tool", ["function"] = "tool", function_response = "tool", ipython = "tool",
  function_call = "assistant",
}

-- By role: the roles that may come before it; `start` means no message.
local may_follow = {
  system = { start = true },
  developer = { start = true, system = true },
  user = { start = true, system = true, developer = true, assistant = true },
  assistant = { system = true, developer = true, user = true, tool = true },
  tool = { assistant = true, tool = true },
}

-- Fields of an assistant's message that can stand in for its content.
local instead_of_content = { "tool_calls", "reasoning_content", "reasoning", "thinking" }

local function says_otherwise(message)
  for _, key in ipairs(instead_of_content) do
    local value = message[key]
    if is_list(value) or type(value) == "string" and value ~= "" then return true end
  end
  return false
end

-- Joins the parts of a content, {{type = "text", text = ...}, ...}.
local function joined_parts(parts)
  local texts = {}
  for i, part in ipairs(parts) do
    local kind = type(part) == "table" and part.type
    if type(part) == "string" then
      texts[i] = part
    elseif kind == "text" and type(part.text) == "string" then
      texts[i] = part.text
    elseif type(kind) == "string" and kind ~= "text" then
      fail("has a part of type '%s', but these conversations are for models of text", kind)
    else
      fail("part %d is %s, expected {type = \"text\", text = ...}", i, native.describe(part))
    end
  end
  return table.concat(texts)
end

local function content_of(message, role)
  local content = message.content
  if content == nil then content = message.value end
  if content == native.null then content = nil end
  if type(content) == "string" then return content end
  if is_list(content) then return joined_parts(content) end
  if content ~= nil then fail("has as content %s, expected text", native.describe(content)) end
  if role ~= "assistant" or not says_otherwise(message) then fail "has no content" end
end

-- The calls of a ShareGPT message `function_call`: JSON, {name, arguments} or a list of them.
local function calls_of(text)
  local ok, calls = pcall(native.json_decode, "function_call", text)
  if not ok or type(calls) ~= "table" then fail("its function_call is no JSON: %s", text) end
  if not is_list(calls) then calls = { calls } end
  local tool_calls = {}
  for i, call in ipairs(calls) do
    tool_calls[i] = { type = "function", ["function"] = call["function"] or call }
  end
  return tool_calls
end

local renamed = { from = true, value = true, role = true, content = true }

local function message_of(given, extra_roles)
  if type(given) ~= "table" then fail("is %s, expected {role, content}", native.describe(given)) end
  local name = given.role
  if name == nil then name = given.from end
  local role = type(name) == "string" and (extra_roles[name] or roles[name])
  if not role then
    fail("has the role %s, expected one of %s; `roles` adds others", native.describe(name),
      table.concat(names_of(roles, extra_roles), ", "))
  end
  local content = content_of(given, role)
  local message = { role = role, content = content }
  for key, value in pairs(given) do
    if not renamed[key] then message[key] = value end
  end
  if name == "function_call" and not given.tool_calls then
    message.content, message.tool_calls = nil, calls_of(content)
  end
  return message
end

-- Returns f(...). Adds the number of the message to an error.
local function at_message(i, f, ...)
  local results = { pcall(f, ...) }
  if results[1] then return results[2] end
  fail("message %d %s", i, without_position(results[2]))
end

local function check_order(messages)
  local before, answers = "start", 0
  for i, message in ipairs(messages) do
    if not may_follow[message.role][before] then
      if before == "start" then
        fail("message 1 is the %s's: a conversation begins with system or user", message.role)
      end
      fail("message %d is the %s's after the %s's: the roles are in a wrong order", i, message.role,
        before)
    end
    before = message.role
    if before == "assistant" then answers = answers + 1 end
  end
  if answers == 0 then fail "has no message of the assistant" end
end

local function with_system(record, list)
  if type(record.system) ~= "string" or record.system == "" then return list end
  local messages = { { role = "system", content = record.system } }
  for _, message in ipairs(list) do messages[#messages + 1] = message end
  return messages
end

local function alpaca_messages(record)
  local messages = {}
  local function say(role, content) messages[#messages + 1] = { role = role, content = content } end
  for _, turn in ipairs(record.history or {}) do
    say("user", turn[1])
    say("assistant", turn[2])
  end
  local question, input = record.instruction, record.input
  if type(question) == "string" and type(input) == "string" and input ~= "" then
    question = question .. "\n" .. input
  end
  say("user", question)
  say("assistant", record.output)
  return with_system(record, messages)
end

-- {key that identifies a form of records, function that returns the messages}.
local forms = {
  { "messages", function(record) return record.messages end },
  { "conversations", function(record)
    local list = record.conversations
    return type(list) == "table" and with_system(record, list) or list
  end },
  { "instruction", alpaca_messages },
}

local function list_of_messages(record)
  if type(record) ~= "table" then
    fail("is %s, expected a record or a list of messages", native.describe(record))
  end
  for _, form in ipairs(forms) do
    if record[form[1]] ~= nil then return form[2](record) end
  end
  local names = {}
  for key in pairs(record) do
    if type(key) == "string" then names[#names + 1] = key end
  end
  if #names == 0 then return record end
  table.sort(names)
  fail("has none of the keys messages, conversations and instruction; it has %s",
    table.concat(names, ", "))
end

local function check_no_media(record)
  for _, key in ipairs { "image", "images", "video", "videos", "audio", "audios" } do
    local value = record[key]
    if value ~= nil and value ~= native.null and (type(value) ~= "table" or next(value) ~= nil) then
      fail("has %s, but these conversations are for models of text", key)
    end
  end
end

-- Returns the variables of the template that a record has: `tools`, a list or JSON, and
-- `chat_template_kwargs`.
local function variables_of(record, given)
  local variables = {}
  for name, value in pairs(given) do variables[name] = value end
  local own = record.chat_template_kwargs
  for name, value in pairs(type(own) == "table" and own or {}) do variables[name] = value end
  local tools = record.tools
  if type(tools) == "string" and tools:find "%S" then tools = native.json_decode("tools", tools) end
  if is_list(tools) then variables.tools = tools end
  return variables
end

--- Returns the messages of a record, {role, content, ...}, and the variables of the template: those
--- of the record besides `variables`. `roles` are further names of roles. Errors do not name the
--- record.
return function(record, options)
  local list = list_of_messages(record)
  check_no_media(record)
  if not is_list(list) then
    if type(list) == "table" then fail "has no messages" end
    fail("its messages are %s, expected a list", native.describe(list))
  end
  local messages = {}
  for i, message in ipairs(list) do
    messages[i] = at_message(i, message_of, message, options.roles)
  end
  check_order(messages)
  return messages, variables_of(record, options.variables)
end
