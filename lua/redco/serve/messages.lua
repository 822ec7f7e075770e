--- The messages of a chat request, as chat templates take them.
local native = require "redco.native"
local refusals = require "redco.serve.refuse"

local refuse = refusals.refuse

-- The roles of the API, and those that templates know.
local roles = { system = "system", developer = "system", user = "user", assistant = "assistant",
  tool = "tool" }

-- Returns the text of a message's content: a string, or a list of parts that are texts.
local function text_of(content, param)
  if type(content) == "string" then return content end
  if type(content) ~= "table" then
    refuse(400, { param = param, code = "invalid_value" },
      "%s: expected a string or a list of parts", param)
  end
  local texts = {}
  for i, part in ipairs(content) do
    local where = ("%s[%d]"):format(param, i - 1)
    if type(part) ~= "table" or part.type ~= "text" or type(part.text) ~= "string" then
      refuse(400, { param = where, code = "unsupported_value" },
        '%s: this model reads text only: expected {"type": "text", "text": "..."}', where)
    end
    texts[i] = part.text
  end
  return table.concat(texts)
end

-- Arguments of a tool call are JSON in a string; templates take the value.
local function with_values(calls, param)
  if type(calls) ~= "table" then
    refuse(400, { param = param, code = "invalid_value" }, "%s: expected a list", param)
  end
  for i, call in ipairs(calls) do
    local called = type(call) == "table" and call["function"]
    if type(called) ~= "table" or type(called.name) ~= "string" then
      refuse(400, { param = param, code = "invalid_value" },
        '%s[%d]: expected {"type": "function", "function": {"name", "arguments"}}', param, i - 1)
    end
    if type(called.arguments) == "string" then
      local ok, value = refusals.try(native.json_decode, "arguments", called.arguments)
      if not ok then
        refuse(400, { param = param, code = "invalid_value" },
          "%s[%d]: the arguments are not valid JSON", param, i - 1)
      end
      called.arguments = value
    end
  end
end

--- Changes the messages of a request to those of a template.
return function(messages)
  for i, message in ipairs(messages) do
    local param = ("messages[%d]"):format(i - 1)
    local role = roles[message.role]
    if not role then
      refuse(400, { param = param .. ".role", code = "invalid_value" },
        "%s.role: expected system, developer, user, assistant or tool", param)
    end
    message.role = role
    if message.tool_calls then with_values(message.tool_calls, param .. ".tool_calls") end
    if message.content == nil and message.tool_calls then
      message.content = ""
    else
      message.content = text_of(message.content, param .. ".content")
    end
  end
  return messages
end
