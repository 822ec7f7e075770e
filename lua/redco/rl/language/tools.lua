--- Tools of a policy: functions of a script that answer the calls in its completions.
local calls = require "redco.serve.calls"
local fail = require "redco.fail"
local native = require "redco.native"
local rewards = require "redco.rl.language.rewards"

local tools = {}

--- Returns the tools of a sampler from its option: by name, as variables of the chat template, and
--- the format in which the model writes calls.
function tools.read(where, given, tokenizer)
  if type(given) ~= "table" or next(given) == nil then
    fail("%s: tools: expected a table {name = function}, got %s", where,
      type(given) == "table" and "an empty one" or native.describe(given))
  end
  if not tokenizer or not tokenizer.chat_template then
    fail("%s: tools: the model writes calls as its chat template does: they need the option "
      .. "tokenizer, and a template", where)
  end
  local names, by_name, shown = {}, {}, {}
  for name in pairs(given) do names[#names + 1] = tostring(name) end
  table.sort(names)
  for i, name in ipairs(names) do
    local tool = given[name]
    if type(tool) == "function" then tool = { call = tool } end
    if type(tool) ~= "table" or type(tool.call) ~= "function" then
      fail("%s: tools.%s: expected a function, or a table with a function `call`, got %s", where,
        name, native.describe(tool or nil))
    end
    by_name[name] = tool.call
    shown[i] = { type = "function", ["function"] = {
      name = name, description = tool.description, parameters = tool.parameters } }
  end
  local variables = { tools = shown }
  local format = calls.format(tokenizer, variables)
  if not format then
    fail("%s: tools: the model's chat template takes no tools, or it does not write calls as JSON "
      .. "objects", where)
  end
  return { by_name = by_name, variables = variables, format = format }
end

--- Returns the message of a turn's text, with its tool_calls if it has some.
function tools.message(self, text)
  local push, finish = calls.reader(self.tools.format)
  local content = push(text)
  local rest, found = finish()
  local message = { role = "assistant", content = content .. rest }
  if not found then return message end
  message.tool_calls = {}
  for i, call in ipairs(found) do
    message.tool_calls[i] = { id = ("call%05d"):format(i), type = "function", ["function"] = {
      name = call.name, arguments = native.json_decode("arguments", call.arguments) } }
  end
  return message
end

-- Returns the text of a tool's answer to a call. Raises an error for results that are not an
-- answer.
local function text_of(value)
  if type(value) == "table" then return native.json_encode("its result", value) end
  if type(value) == "string" then return value end
  if type(value) == "number" or type(value) == "boolean" then return tostring(value) end
  error("expected a text, a number, a boolean or a table to be returned, got "
    .. native.describe(value), 0)
end

--- Raises an error of a tool in the call of an item.
function tools.fail(where, item, message)
  fail("%s: the tool '%s' of example %d, prompt %s, arguments %s: %s", where, item.call.name,
    item.sample.number, rewards.shortened(item.sample.text),
    rewards.shortened(native.json_encode("arguments", item.call.arguments)), message)
end

--- Returns the answer to the call of an item: its text, and whether it is an error. Call it inside
--- `rewards.uncompiled`.
function tools.call(where, by_name, item, seconds, is_raised)
  local name, arguments, sample = item.call.name, item.call.arguments, item.sample
  local f, message = by_name[name], ("there is no tool '%s'"):format(name)
  if f then
    local ok, value = rewards.within(seconds, function()
      return text_of(f(arguments, sample.example, sample))
    end)
    if ok then return { text = value, is_error = false } end
    if is_raised then tools.fail(where, item, tostring(value)) end
    message = ("%s: %s"):format(name, tostring(value))
  end
  return { text = native.json_encode("error", { error = message }), is_error = true }
end

--- Answers the calls in the last messages of samples, and adds the answers as messages.
function tools.answer(self, list)
  local items = {}
  for _, sample in ipairs(list) do
    for place, call in ipairs(sample.messages[#sample.messages].tool_calls) do
      items[#items + 1] = { sample = sample, id = call.id, call = call["function"],
        place = sample.n_calls + place }
    end
  end
  local results = self.calls:map(items)
  for i, item in ipairs(items) do
    local sample, result = item.sample, results[i]
    sample.n_calls = sample.n_calls + 1
    sample.n_failures = sample.n_failures + (result.is_error and 1 or 0)
    table.insert(sample.messages, { role = "tool", name = item.call.name, tool_call_id = item.id,
      content = result.text })
  end
end

-- Returns the number of tokens of a list that end a turn, or the place of the n-th of them.
local function ends(list, is_end, n)
  local found = 0
  for i, token in ipairs(list) do
    if is_end[token] then
      found = found + 1
      if found == n then return i end
    end
  end
  return not n and found or nil
end

--- Returns the tokens that the chat template writes between a turn with calls and the next turn.
--- `messages` ends with both: the calls and their answers. The turn itself is not tokenized again.
function tools.tokens_between(self, where, messages)
  local first = #messages
  while messages[first].role == "tool" do first = first - 1 end
  local function format(list, has_prompt)
    return self.tokenizer:apply_chat_template(list,
      { add_generation_prompt = has_prompt, variables = self.tools.variables })
  end
  local question = { role = "user", content = "question" }
  local turn = { role = "assistant", content = "", tool_calls = messages[first].tool_calls }
  local whole = format({ question, turn, unpack(messages, first + 1) }, true)
  -- The end of the turn is the first one behind those of the question.
  local last = ends(whole, self.is_end, ends(format({ question }, true), self.is_end) + 1)
  if not last then
    local before = format({ question, turn }, false)
    last = #before
    for i, token in ipairs(before) do
      if whole[i] ~= token then
        fail("%s: tools: in the model's chat template, answers of tools do not follow the text of "
          .. "the call", where)
      end
    end
  end
  local between = {}
  for i = last + 1, #whole do between[#between + 1] = whole[i] end
  return between
end

return tools
