-- Tool calls of redco.serve: their format by the chat template, and answers with calls.
local calls = require "redco.serve.calls"
local client = require "http_client"
local native = require "redco.native"
local redco = require "redco"
local testing = require "testing"

local test, expect_equal = testing.test, testing.expect_equal
local torch = redco.torch
local path = "../cases/llama"
local tokenizer = redco.Tokenizer.from_pretrained(path)
local tools = { { type = "function", ["function"] = { name = "look" } } }

-- A template whose assistant has the given beginning, way to write calls, and end.
local function template(opening, written, ending)
  return "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}"
    .. "{% if m.role == 'assistant' %}A:" .. opening .. "{{ m.content }}{% if m.tool_calls %}"
    .. written .. "{% endif %}" .. ending .. "{% else %}U:{{ m.content }}\n{% endif %}{% endfor %}"
    .. "{% if add_generation_prompt %}A:{% endif %}"
end
local function each_call(written)
  return "{% for c in m.tool_calls %}" .. written .. "{% endfor %}"
end

local xml = each_call "\n<call>\n{{ c.function | tojson }}\n</call>"
local list = "[CALLS] [{% for c in m.tool_calls %}{{ ', ' if not loop.first }}"
  .. '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}, '
  .. '"id": "{{ c.id }}"}{% endfor %}]'
local bare = each_call('{"name": "{{ c.function.name }}", "parameters": '
  .. "{{ c.function.arguments | tojson }}}")

test("the format of calls is that of the chat template", function()
  local cases = {
    { template("", xml, "<end>\n"), "<call>", "</call>", "arguments" },
    { template("<think>\n\n</think>\n\n", xml, "<end>\n"), "<call>", "</call>", "arguments" },
    { template("", list, "</s>"), "[CALLS] [", "]", "arguments" },
    { template("", bare, "<end>"), "", "", "parameters" },
  }
  for _, case in ipairs(cases) do
    tokenizer.chat_template = case[1]
    local format = calls.format(tokenizer, { tools = tools })
    assert(format, case[1])
    expect_equal(format.prefix, case[2])
    expect_equal(format.suffix, case[3])
    expect_equal(format.arguments, case[4])
  end
  for _, other in ipairs {
    template("", each_call "<call name={{ c.function.name }}>", ""),  -- no JSON
    template("", "", ""),  -- no calls
    "{{ raise_exception('no') }}",
  } do
    tokenizer.chat_template = other
    expect_equal(calls.format(tokenizer, { tools = tools }), nil)
  end
end)

local formats = {
  xml = { prefix = "<call>", suffix = "</call>", arguments = "arguments" },
  list = { prefix = "[", suffix = "]", arguments = "arguments" },
  bare = { prefix = "", suffix = "", arguments = "parameters" },
}

-- Returns what is shown, and the calls, of a text that comes in pieces of n bytes.
local function read(format, text, n)
  local push, finish = calls.reader(format)
  local shown = {}
  for at = 1, #text, n do shown[#shown + 1] = push(text:sub(at, at + n - 1)) end
  local rest, found = finish()
  local names = {}
  for i, call in ipairs(found or {}) do names[i] = call.name .. call.arguments end
  return table.concat(shown) .. rest, table.concat(names, " ")
end

test("calls are found in texts, and other texts stay whole", function()
  local cases = {
    { "xml", '<call>\n{"name": "a", "arguments": {"x": "}\\"{"}}\n</call>', "", 'a{"x":"}\\"{"}' },
    { "xml", 'I look.\n<call>{"arguments": {"n": [1, {}]}, "name": "a"}</call>', "I look.\n",
      'a{"n":[1,{}]}' },
    { "xml", '<call>{"name": "a", "arguments": {}}</call>\n<call>{"name": "b", "arguments": {}}',
      "", "a{} b{}" },
    { "xml", '<call>{"name": "a", "arguments": {' },
    { "xml", '<call>{"name": "a"}</call>' },
    { "xml", '<call>{"name": 3, "arguments": {}}</call>' },
    { "xml", '<call>{"name": "a", "arguments": {}}</call> and more' },
    { "xml", "a <cal" }, { "xml", "no <b>call</b>" }, { "xml", "" }, { "xml", "<call>" },
    { "list", '[{"name": "a", "arguments": {}}, {"name": "b", "arguments": {"k": 1.5}}]', "",
      'a{} b{"k":1.5}' },
    { "list", "See [1]." }, { "list", "[1] says" }, { "list", " [" },
    { "bare", '\n{"name": "a", "parameters": {"k": "v"}}', "", 'a{"k":"v"}' },
    { "bare", '{"name": "a", "parameters": {}} {"name": "b", "parameters": {}}', "", "a{} b{}" },
    { "bare", "{ is a brace" }, { "bare", 'A call is {"name": "a", "parameters": {}}' },
  }
  for _, case in ipairs(cases) do
    local kind, text, expected, found = unpack(case)
    for _, n in ipairs { 1, 3, 1000 } do
      local shown, names = read(formats[kind], text, n)
      expect_equal(shown, expected or text)
      expect_equal(names, found or "")
    end
  end
end)

-- A model that writes this text.
local function scripted(text)
  local model = redco.models.from_pretrained(path)
  local tokens, n = tokenizer:encode(text, { add_special_tokens = false }), 0
  tokens[#tokens + 1] = tokenizer.eos_token_id
  local logits = model.logits
  model.logits = function(params, hidden)
    n = n % #tokens + 1
    local scores = torch.zeros_like(logits(params, hidden))
    scores:select(1, tokens[n]):fill_(50)
    return scores
  end
  return model
end

test("answers have the calls, whole and streamed", function()
  tokenizer.chat_template = "{% if tools %}T{% endif %}{% for m in messages %}"
    .. "{{ m.role[0] }}{{ m.content }}{% for c in m.tool_calls %}<c>{{ c.function | tojson }}</c>"
    .. "{% endfor %}{% endfor %}{% if add_generation_prompt %}a{% endif %}"
  local model = scripted 'x<c>{"name":"a","arguments":{"b":1}}</c>'
  local server = redco.serve(model, model.params, tokenizer, { port = 0 })
  local function ask(more)
    local body = { messages = { { role = "user", content = "q" } }, tools = tools }
    for name, value in pairs(more) do body[name] = value end
    return client.ask_all(server.port, { { path = "/v1/chat/completions", body = body } },
      function() server:poll() end)[1]
  end
  local answer = ask { logprobs = true }
  assert(answer.status == 200, answer.body)
  local choice = answer.json.choices[1]
  expect_equal(choice.finish_reason, "tool_calls")
  expect_equal(choice.message.content, "x")
  expect_equal(#choice.message.tool_calls, 1)
  local call = choice.message.tool_calls[1]
  expect_equal(call.type, "function")
  expect_equal(call["function"].name, "a")
  expect_equal(call["function"].arguments, '{"b":1}')
  assert(#call.id > 0)

  local events = ask({ stream = true }).events
  local text, streamed, reason = "", nil, nil
  for i = 1, #events - 1 do
    local part = events[i].choices[1]
    text, reason = text .. (part.delta.content or ""), part.finish_reason
    streamed = streamed or part.delta.tool_calls
  end
  expect_equal(text, "x")
  expect_equal(reason, "tool_calls")
  expect_equal(streamed[1].index, 0)
  expect_equal(streamed[1]["function"].arguments, '{"b":1}')

  -- A call that is cut is text.
  expect_equal(ask({ max_tokens = 8 }).json.choices[1].finish_reason, "length")

  -- The call and its result go back to the model, with the arguments as a value.
  answer = ask { max_tokens = 1, messages = {
    { role = "user", content = "q" },
    { role = "assistant", tool_calls = { call } },
    { role = "tool", content = "r", tool_call_id = call.id },
  } }
  assert(answer.status == 200, answer.body)
  local prompt = 'Tuqa<c>{"arguments": {"b": 1}, "name": "a"}</c>tra'
  expect_equal(answer.json.usage.prompt_tokens,
    #tokenizer:encode(prompt, { add_special_tokens = false }))
  local wrong = ask { messages = { { role = "assistant", tool_calls = { {
    type = "function", ["function"] = { name = "a", arguments = "{" } } } } } }
  expect_equal(wrong.status, 400)
  server:close()
end)

test("tool_choice forces a call, in the form of the template", function()
  local model = redco.models.from_pretrained(path)
  local server = redco.serve(model, model.params, tokenizer, { port = 0 })
  local function tool(name, parameters)
    return { type = "function", ["function"] = { name = name, parameters = parameters } }
  end
  local three = { tool("a", { type = "object", properties = { x = { enum = { 1, 2 } } },
    required = { "x" }, additionalProperties = false }), tool("b"),
    tool("c", { type = "object", properties = native.json_decode("", "{}") }) }
  -- A model without sense would use all the blanks that JSON may have, and end an answer anywhere.
  local biases, texts = { ["2"] = -100 }, require "redco.generation.grammar".texts_of(tokenizer)
  for token = 0, #tokenizer - 1 do
    if texts:bytes(token):find "[\n\t]" then biases[tostring(token)] = -100 end
  end
  local function ask(more)
    local body = { messages = { { role = "user", content = "q" } }, tools = three,
      temperature = 1.5, logit_bias = biases }
    for name, value in pairs(more) do body[name] = value end
    return client.ask_all(server.port, { { path = "/v1/chat/completions", body = body } },
      function() server:poll() end)[1]
  end
  local function named(name) return { type = "function", ["function"] = { name = name } } end
  local in_list = "[{% for c in m.tool_calls %}{{ c.function | tojson }}{% endfor %}]"
  for _, written in ipairs { xml, in_list, bare } do
    tokenizer.chat_template = "{% if tools %}T{% endif %}{% for m in messages %}"
      .. "{% if m.role == 'assistant' %}A:{{ m.content }}{% if m.tool_calls %}" .. written
      .. "{% endif %}{% else %}U{% endif %}{% endfor %}{% if add_generation_prompt %}A:{% endif %}"
    for seed = 1, 3 do
      local answer = ask { tool_choice = named "a", seed = seed }
      assert(answer.status == 200, answer.body)
      local choice = answer.json.choices[1]
      assert(choice.finish_reason == "tool_calls", answer.body)
      expect_equal(#choice.message.tool_calls, 1)
      local call = choice.message.tool_calls[1]["function"]
      expect_equal(call.name, "a")
      assert(call.arguments == '{"x":1}' or call.arguments == '{"x":2}', call.arguments)
    end
    local call = ask({ tool_choice = named "c", parallel_tool_calls = false })
      .json.choices[1].message.tool_calls[1]["function"]
    expect_equal(call.name .. call.arguments, "c{}")
  end
  local names = {}
  for seed = 1, 12 do
    local message = ask({ tool_choice = "required", seed = seed, tools = { three[1], three[3] } })
      .json.choices[1].message
    names[message.tool_calls[1]["function"].name] = true
  end
  assert(names.a and names.c)
  local function refused(param, more, text)
    local answer = ask(more)
    expect_equal(answer.status, 400)
    expect_equal(answer.json.error.param, param)
    assert(answer.json.error.message:find(text, 1, true), answer.body)
  end
  refused("tool_choice", { tool_choice = named "z" }, "no tool z")
  refused("tool_choice", { tool_choice = { type = "function", ["function"] = 3 } }, "name")
  refused("tools", { tool_choice = "required",
    tools = { tool("a", { type = "object", ["not"] = {} }) } }, "the keyword 'not'")
  refused("tools", { tool_choice = "required", tools = { tool(3) } }, "tools[0]")
  -- Also where the answer need not call one.
  refused("tools", { tools = { three[1], { type = "web_search" } } }, "tools[1]: expected")
  refused("tools", { tools = { tool "" } }, "tools[0]: expected")
  refused("tools", { tools = { { type = "custom", ["function"] = { name = "a" } } } }, "tools[0]")
  refused("parallel_tool_calls", { parallel_tool_calls = false }, "tool_choice")
  -- With a response_format, the answer is of that form or a call.
  local formed = ask { response_format = { type = "json_schema",
    json_schema = { name = "n", schema = { const = "yes" } } }, tools = { three[3] } }
  assert(formed.status == 200, formed.body)
  local message = formed.json.choices[1].message
  assert(message.tool_calls or message.content:find "yes", formed.body)
  server:close()
end)

testing.finish()
