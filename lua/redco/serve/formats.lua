--- The form that a request wants its answer to have: JSON, JSON of a schema, or a tool call. It
--- becomes a grammar, by which the tokens of the answer are chosen.
local calls = require "redco.serve.calls"
local new_processor = require "redco.generation.grammar".new_processor
local refusals = require "redco.serve.refuse"
local without_position = require "redco.without_position"

local refuse = refusals.refuse

local function invalid(param, message, ...)
  refuse(400, { param = param, code = "invalid_value" }, "%s: " .. message, param, ...)
end

local of_json_schema = { name = "string", description = "string", schema = "table",
  strict = "boolean" }

-- Returns the parts of a grammar for a response_format, or nil for any text.
local function parts_of_response(format)
  if not format or format.type == "text" then return end
  local known = { type = true, json_schema = format.type == "json_schema" }
  for name in pairs(format) do
    if not known[name] then invalid("response_format", "there is no %s here", name:sub(1, 64)) end
  end
  if format.type == "json_object" then return { { json = "object" } } end
  local given = format.json_schema
  if type(given) ~= "table" or given.schema == nil then
    invalid("response_format", 'expected {"type": "json_schema", "json_schema": {"name": "...", '
      .. '"schema": {...}}}')
  end
  for name, value in pairs(given) do
    local expected = of_json_schema[name]
    if not expected then
      invalid("response_format", "json_schema has no %s", tostring(name):sub(1, 64))
    end
    if type(value) ~= expected then
      invalid("response_format", "json_schema.%s: expected a %s", name,
        expected == "table" and "schema, an object" or expected)
    end
  end
  return { { schema = given.schema } }
end

-- Returns the tools that the answer must call one of, or nil if it need not.
local function forced_tools(given)
  local choice, tools = given.tool_choice, given.tools
  if not choice or choice == "auto" or choice == "none" then return end
  if not tools or #tools == 0 then
    invalid("tool_choice", "the request has no tools")
  end
  if choice == "required" then return tools end
  local wanted = choice.type == "function" and choice["function"]
  local name = type(wanted) == "table" and wanted.name
  if type(name) ~= "string" then
    invalid("tool_choice", '{"type": "function", "function": {"name": "..."}}')
  end
  for _, tool in ipairs(tools) do
    if calls.name_of(tool) == name then return { tool } end
  end
  invalid("tool_choice", "the request has no tool %s", name:sub(1, 64))
end

--- Returns a logits processor for the form of the answer to a chat, or nil if it may be any text.
--- `call_format` is how the model writes tool calls, nil without tools.
return function(given, tokenizer, call_format)
  local parts, tools = parts_of_response(given.response_format), forced_tools(given)
  local param = tools and "tools" or "response_format"
  if tools then
    parts = { { any_of = calls.parts(call_format, tools) } }
  elseif given.parallel_tool_calls == false and call_format then
    invalid("parallel_tool_calls", "false needs a tool_choice that forces a call, which is one")
  elseif parts and call_format then
    parts = { { any_of = { parts, { { any_of = calls.parts(call_format, given.tools) } } } } }
  end
  if not parts then return end
  local ok, processor = refusals.try(new_processor, param, tokenizer, parts)
  if ok then return processor end
  refuse(400, { param = param, code = "invalid_value" }, "%s", without_position(processor))
end
