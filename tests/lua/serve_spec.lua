-- redco.serve: the answers of the API, and requests that are wrong or that nobody waits for.
local client = require "http_client"
local native = require "redco.native"
local redco = require "redco"
local testing = require "testing"
local turns = require "turns"

local test, expect_equal, expect_error = testing.test, testing.expect_equal, testing.expect_error
local torch = redco.torch

local path = "../cases/llama"
local model = redco.models.from_pretrained(path)
local tokenizer = redco.Tokenizer.from_pretrained(path)
tokenizer.chat_template = "{% if tools %}{{ tools[0].function.name }};{% endif %}"
  .. "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
  .. "{{ m.role[0] }}:{{ m.content }}{{ m.tool_calls[0].function | tojson if m.tool_calls }};"
  .. "{% endfor %}{% if add_generation_prompt %}a:{% endif %}"

local function new_server(options)
  local o = { port = 0 }
  for name, value in pairs(options or {}) do o[name] = value end
  return redco.serve(model, model.params, tokenizer, o)
end
local server = new_server { name = "llama", max_rows = 4, max_queue = 12 }

local function ask_all(requests, of)
  of = of or server
  return client.ask_all(of.port, requests, function() of:poll() end)
end
local function ask(request, of) return ask_all({ request }, of)[1] end

local function completion(body, of)
  return ask({ path = "/v1/completions", body = body }, of)
end
local function chat(body, of) return ask({ path = "/v1/chat/completions", body = body }, of) end

-- The text of tokens as it comes; that of `decode` differs where bytes are no characters.
local function text_of(tokens)
  local stream, text = tokenizer:decode_stream { skip_special_tokens = true }, ""
  for _, token in ipairs(tokens:tolist()) do text = text .. stream:step(token) end
  return text .. stream:finish()
end

-- Returns what the model writes after the tokens, at most n tokens, by greedy search.
local function greedy(prompt, n, params)
  local ids = model.generate(params or model.params,
    { input_ids = torch.tensor({ prompt }, { dtype = "int64" }) },
    { max_new_tokens = n, do_sample = false })[0]
  return text_of(ids:narrow(0, #prompt, ids:size(0) - #prompt))
end

local hi = { { role = "user", content = "hi" } }
local function chat_prompt(messages)
  return tokenizer:apply_chat_template(messages, { add_generation_prompt = true })
end

test("greedy answers are those of model.generate", function()
  local prompt = tokenizer:encode "the sea"
  local text = greedy(prompt, 12)
  for _, given in ipairs { "the sea", prompt, { "the sea" }, { prompt } } do
    local answer = completion { model = "llama", prompt = given, max_tokens = 12, temperature = 0 }
    expect_equal(answer.status, 200)
    expect_equal(answer.json.object, "text_completion")
    expect_equal(answer.json.choices[1].text, text)
    expect_equal(answer.json.choices[1].finish_reason, "length")
    expect_equal(answer.json.usage.prompt_tokens, #prompt)
    expect_equal(answer.json.usage.completion_tokens, 12)
  end
  expect_equal(completion { prompt = "the sea" }.json.choices[1].text, greedy(prompt, 16))
  local answer = chat { messages = hi, max_completion_tokens = 6 }.json
  expect_equal(answer.object, "chat.completion")
  expect_equal(answer.choices[1].message.role, "assistant")
  expect_equal(answer.choices[1].message.content, greedy(chat_prompt(hi), 6))
  -- Without a limit the answer ends with the model's context.
  local usage = chat { messages = hi }.json.usage
  expect_equal(usage.total_tokens, model.config.max_position_embeddings)
end)

test("messages may have parts, and the roles of the API", function()
  local expected = greedy(chat_prompt { { role = "system", content = "S" },
    { role = "user", content = "the sea" } }, 4)
  local answer = chat { max_tokens = 4, messages = { { role = "developer", content = "S" },
    { role = "user", content = { { type = "text", text = "the " },
      { type = "text", text = "sea" } } } } }
  expect_equal(answer.json.choices[1].message.content, expected)
end)

test("tools reach the chat template, unless tool_choice is none", function()
  local tools = { { type = "function", ["function"] = { name = "look" } } }
  local with = greedy(tokenizer:apply_chat_template(hi,
    { add_generation_prompt = true, variables = { tools = tools } }), 4)
  local function content(more)
    local body = { messages = hi, max_tokens = 4, tools = tools }
    for name, value in pairs(more) do body[name] = value end
    return chat(body).json.choices[1].message.content
  end
  expect_equal(content {}, with)
  expect_equal(content { tool_choice = "auto" }, with)
  expect_equal(content { tool_choice = "none" }, greedy(chat_prompt(hi), 4))
  local template = tokenizer.chat_template
  tokenizer.chat_template = "{{ messages[0].content }}"
  local answer = chat { messages = hi, max_tokens = 4, tools = tools }
  expect_equal(answer.status, 400)
  expect_equal(answer.json.error.param, "tools")
  tokenizer.chat_template = template
end)

test("a stream has the same text as the whole answer", function()
  for _, more in ipairs { {}, { temperature = 1, seed = 3, n = 2 }, { stop = "t" } } do
    local body = { messages = hi, max_tokens = 9 }
    for name, value in pairs(more) do body[name] = value end
    local whole = chat(body).json
    body.stream, body.stream_options = true, { include_usage = true }
    local answer = chat(body)
    expect_equal(answer.status, 200)
    local texts, reasons = {}, {}
    expect_equal(answer.events[#answer.events], "[DONE]")
    for i = 1, #answer.events - 2 do
      local choice = answer.events[i].choices[1]
      texts[choice.index + 1] = (texts[choice.index + 1] or "") .. (choice.delta.content or "")
      reasons[choice.index + 1] = choice.finish_reason
    end
    for i, choice in ipairs(whole.choices) do
      expect_equal(texts[i], choice.message.content)
      expect_equal(reasons[i], choice.finish_reason)
    end
    local last = answer.events[#answer.events - 1]
    expect_equal(#last.choices, 0)
    for name, n in pairs(whole.usage) do expect_equal(last.usage[name], n) end
  end
end)

test("an answer ends before a stop string, and its row is free", function()
  local text = greedy(tokenizer:encode "the sea", 12)
  local stop = text:sub(9, 13)
  local answer = completion { prompt = "the sea", max_tokens = 12, temperature = 0, stop = stop,
    logprobs = 0 }
  local choice = answer.json.choices[1]
  expect_equal(choice.text, text:sub(1, text:find(stop, 1, true) - 1))
  expect_equal(choice.finish_reason, "stop")
  assert(answer.json.usage.completion_tokens < 12)
  local n = #choice.logprobs.tokens
  assert(n > 0 and n <= answer.json.usage.completion_tokens)
  expect_equal(server:poll(), 0)
  assert(server.batch:is_idle())
end)

test("seeded answers are the same alone and among others", function()
  local bodies = {}
  for i = 1, 9 do
    bodies[i] = { prompt = i % 2 == 0 and "the sea" or "a much longer prompt of many words",
      temperature = 1.5, top_p = 0.9, seed = i, max_tokens = 4 + i }
  end
  local alone, requests = {}, {}
  for i, body in ipairs(bodies) do
    alone[i] = completion(body).json.choices[1].text
    requests[i] = { path = "/v1/completions", body = body }
  end
  for i, answer in ipairs(ask_all(requests)) do
    expect_equal(answer.json.choices[1].text, alone[i])
  end
  local other = completion { prompt = "the sea", temperature = 1.5, top_p = 0.9, seed = 99,
    max_tokens = 6 }
  assert(other.json.choices[1].text ~= alone[2])
  -- Without a seed each answer is another one.
  local function unseeded()
    return completion { prompt = "the sea", temperature = 2, max_tokens = 12 }.json.choices[1].text
  end
  assert(unseeded() ~= unseeded())
end)

test("log-probabilities are the model's", function()
  local answer = chat { messages = hi, max_tokens = 5, temperature = 0, logprobs = true,
    top_logprobs = 3 }.json.choices[1]
  local prompt = chat_prompt(hi)
  local ids = model.generate(model.params,
    { input_ids = torch.tensor({ prompt }, { dtype = "int64" }) },
    { max_new_tokens = 5, do_sample = false })
  local raw = model(model.params, { input_ids = ids }):log_softmax(-1)[0]
  expect_equal(#answer.logprobs.content, 5)
  for i, entry in ipairs(answer.logprobs.content) do
    local at = raw[#prompt + i - 2]
    local token = ids[0][#prompt + i - 1]:item()
    assert(math.abs(entry.logprob - at[token]:item()) < 1e-4)
    expect_equal(#entry.top_logprobs, 3)
    local best = at:topk(3)
    for j = 1, 3 do
      assert(math.abs(entry.top_logprobs[j].logprob - best[j - 1]:item()) < 1e-4)
    end
    local bytes = string.char(unpack(entry.bytes))
    if not entry.token:find "\239\191\189" then expect_equal(bytes, entry.token) end
  end
  local text = completion { prompt = "the sea", max_tokens = 5, logprobs = 2 }.json.choices[1]
  expect_equal(#text.logprobs.tokens, 5)
  expect_equal(#text.logprobs.token_logprobs, 5)
  expect_equal(text.logprobs.text_offset[1], 0)
end)

-- The status, and words of the message, for a body of /v1/chat/completions.
local function expect_refused(status, param, body, ...)
  local answer = ask { path = "/v1/chat/completions", body = body }
  expect_equal(answer.status, status)
  expect_equal(answer.json.error.type, "invalid_request_error")
  if param then expect_equal(answer.json.error.param, param) end
  for _, part in ipairs { ... } do
    assert(answer.json.error.message:find(part, 1, true), answer.json.error.message)
  end
end

test("wrong bodies get the status 400 and say what is wrong", function()
  expect_refused(400, nil, "", "not valid JSON")
  expect_refused(400, nil, "{\"messages\": [", "not valid JSON")
  expect_refused(400, nil, "\255", "not valid JSON")
  expect_refused(400, nil, ("["):rep(5000), "not valid JSON")
  expect_refused(400, nil, "[1]", "not a JSON object")
  expect_refused(400, nil, "3", "not a JSON object")
  expect_refused(400, "messages", "{}", "messages is missing")
  local wrong = {
    messages = { 3, "hi", {}, { 3 } }, temperature = { -1, 2.5, "hot", true }, top_p = { 1.5, "1" },
    n = { 0, 1.5, 129, "2" }, max_tokens = { 0, -1, 1.5, "9" }, seed = { 0.5, "a" },
    stop = { "", { "" }, { 3 }, 3 }, stream = { 1, "true" }, top_logprobs = { 21, -1 },
    logprobs = { 3 }, frequency_penalty = { 2.5, "1" }, presence_penalty = { -3 },
    repetition_penalty = { 0, -1, 1e9 }, min_p = { 2 }, top_k = { -1, 0.5 },
    logit_bias = { { ["5"] = 101 }, { ["5"] = "1" }, { a = 1 }, { ["-1"] = 1 }, { 1 },
      { ["1e3"] = 1 }, { ["99999999"] = 1 }, { [("9"):rep(400)] = 1 } },
    response_format = { "json", {}, { type = "xml" }, { type = "json_schema" },
      { type = "json_schema", json_schema = { name = "a" } },
      { type = "json_schema", json_schema = { schema = 3 } },
      { type = "json_schema", json_schema = { schema = {}, more = 1 } },
      { type = "json_object", more = 1 } },
    tool_choice = { "required", { type = "function" }, "always", {} }, functions = { {} },
    user = { 5 }, parallel_tool_calls = { 1 },
    tools = { { 3 }, "x" }, model = { 3 }, stream_options = { { include_usage = true } },
  }
  for name, values in pairs(wrong) do
    for _, value in ipairs(values) do
      local body = { messages = hi }
      body[name] = value
      expect_refused(400, name, body, name)
    end
  end
  expect_refused(400, "tempertaure", { messages = hi, tempertaure = 1 }, "did you mean temperature")
  expect_refused(400, "top_logprobs", { messages = hi, top_logprobs = 2 }, "logprobs")
  expect_refused(400, "messages[0].role", { messages = { { role = "king", content = "a" } } })
  expect_refused(400, "messages[0].content", { messages = { { role = "user" } } })
  expect_refused(400, "messages[0].content[0]", { messages = { { role = "user",
    content = { { type = "image_url", image_url = { url = "x" } } } } } }, "text only")
  expect_refused(400, "messages", { messages = { { role = "tool", content = "a" } } }, "no tools")
  expect_refused(404, "model", { model = "gpt", messages = hi }, "llama")
  expect_refused(400, "messages", { messages = { { role = "user", content = ("sea "):rep(99) } } },
    "together may have 64")
  expect_refused(400, "max_tokens", { messages = hi, max_tokens = 64 }, "together they may have 64")
  expect_refused(400, "n", { messages = hi, n = 17 }, "at most 16")
  local many = {}
  for i = 1, 9000 do many[i] = { 1 } end
  local answer = completion { prompt = many, n = 128 }
  expect_equal(answer.status, 400)
  assert(answer.json.error.message:find "1152000 answers; at most 16", answer.body)
  for _, prompt in ipairs { {}, { { 1 }, { 99999 } }, { -1 }, { { 1 }, {} } } do
    expect_equal(completion { prompt = prompt }.status, 400)
  end
  -- Values without an effect are taken, and so is null.
  expect_equal(chat([[{"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1,
    "frequency_penalty": 0.0, "logit_bias": {}, "parallel_tool_calls": false, "stop": null, "user": "me", "store": false,
    "response_format": {"type": "text"}, "seed": -1}]]).status, 200)
end)

test("schemas that cannot be are refused with the place", function()
  local function expect(schema, ...)
    expect_refused(400, "response_format", [[{"messages": [{"role": "user", "content": "hi"}],
      "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": ]]
      .. schema .. "}}}", ...)
  end
  expect('{"properties": {"a": {"type": "string", "not": {}}}}', "#/properties/a", "'not'")
  expect('{"oneOf": []}', "oneOf")
  expect('{"$ref": "#"}', "refers to itself")
  expect(('{"items":'):rep(300) .. "{}" .. ("}"):rep(300), "nested")
  local long = {}
  for i = 1, 40 do long[i] = ('"p%d": {"type": "string", "maxLength": 9999}'):format(i) end
  expect('{"properties": {' .. table.concat(long, ",") .. "}}", "too large")
end)

test("penalties, biases and filters of each request, in one batch", function()
  local sea = tokenizer:encode "the sea"
  local function text(options)
    local all = { max_new_tokens = 12, do_sample = false }
    for name, value in pairs(options) do all[name] = value end
    local ids = model.generate(model.params, { input_ids = torch.tensor { sea } }, all)[0]
    return text_of(ids:narrow(0, #sea, ids:size(0) - #sea))
  end
  local plain = text {}
  local token = tokenizer:encode(plain, { add_special_tokens = false })[3]
  local cases = {
    { {}, {} },
    { { frequency_penalty = 1.5 }, { frequency_penalty = 1.5 } },
    { { presence_penalty = 2 }, { presence_penalty = 2 } },
    { { repetition_penalty = 1.8 }, { repetition_penalty = 1.8 } },
    { { logit_bias = { [tostring(token)] = -100 } }, { sequence_bias = { { { token }, -100 } } } },
    { { logit_bias = { ["7"] = 100, ["8"] = -1 } }, { sequence_bias = { { { 7 }, 100 } } } },
    { { temperature = 1, top_k = 1 }, {} }, { { temperature = 1, min_p = 1 }, {} },
  }
  local requests, n_different = {}, 0
  for i, case in ipairs(cases) do
    local body = { prompt = "the sea", max_tokens = 12, temperature = 0 }
    for name, value in pairs(case[1]) do body[name] = value end
    requests[i] = { path = "/v1/completions", body = body }
  end
  for i, answer in ipairs(ask_all(requests)) do
    local expected = text(cases[i][2])
    expect_equal(answer.json.choices[1].text, expected)
    if expected ~= plain then n_different = n_different + 1 end
  end
  assert(n_different >= 4, n_different)
end)

test("an answer has the JSON that the request asks for", function()
  local function json(format, more, reason)
    local body = { messages = hi, response_format = format, temperature = 1.5 }
    for name, value in pairs(more) do body[name] = value end
    local answer = chat(body)
    expect_equal(answer.status, 200)
    expect_equal(answer.json.choices[1].finish_reason, reason)
    return answer.json.choices[1].message.content
  end
  local schema = { type = "json_schema", json_schema = { name = "x", strict = true, schema = {
    enum = { { k = "sea", n = 1 }, 17, "y" } } } }
  local seen = {}
  for seed = 1, 20 do
    local value = native.json_decode("answer", json(schema, { seed = seed }, "stop"))
    seen[type(value) == "table" and value.k .. value.n or value] = true
  end
  assert(seen[17] and seen.y)
  -- As long as the answer may be, it is the beginning of an object.
  local text = json({ type = "json_object" },
    { max_tokens = 8, logit_bias = { ["2"] = -100 } }, "length")
  assert(text:find "^%s*{", text)
  local both = ask_all {
    { path = "/v1/chat/completions", body = { messages = hi, response_format = schema } },
    { path = "/v1/chat/completions", body = { messages = hi, max_tokens = 6 } },
    { path = "/v1/chat/completions", body = { messages = hi, response_format = schema, n = 2,
      stream = true } },
  }
  expect_equal(both[2].json.choices[1].message.content, greedy(chat_prompt(hi), 6))
  native.json_decode("answer", both[1].json.choices[1].message.content)
  local streamed = ""
  for _, event in ipairs(both[3].events) do
    local choice = event ~= "[DONE]" and event.choices[1]
    if choice and choice.index == 1 then streamed = streamed .. (choice.delta.content or "") end
  end
  expect_equal(streamed, both[1].json.choices[1].message.content)
end)

test("the next turn of a conversation reads only what is new", function()
  local counts = {}
  local of = redco.serve(turns.counted(model, counts), model.params, tokenizer, { port = 0 })
  local messages = { { role = "user", content = "the sea and all that is in it" } }
  for turn = 1, 3 do
    local prompt = chat_prompt(messages)
    counts.n = 0
    local request = { path = "/v1/chat/completions",
      body = { messages = messages, max_tokens = 6, temperature = 0 } }
    local answer = client.ask_all(of.port, { request }, function()
      of:turn(0, function() return false end)
    end)[1].json.choices[1].message.content
    expect_equal(answer, greedy(prompt, 6))
    if turn > 1 then assert(counts.n < #prompt, ("%d of %d"):format(counts.n, #prompt)) end
    table.insert(messages, { role = "assistant", content = answer })
    table.insert(messages, { role = "user", content = "more" })
  end
  of:close()
end)

test("wrong paths, methods and texts get an error", function()
  expect_equal(ask { path = "/v1/embeddings", body = {} }.status, 404)
  expect_equal(ask { path = "/v1/completions" }.status, 405)
  expect_equal(ask { path = "/health?a=b" }.json.status, "ok")
  expect_equal(ask { path = "/v1/models" }.json.data[1].id, "llama")
  expect_equal(ask { path = "/v1/models/llama" }.json.id, "llama")
  expect_equal(ask { path = "/v1/models", method = "HEAD" }.body, "")
  expect_equal(completion(("x"):rep(1e6)).status, 413)
  expect_equal(ask { path = "/health", headers = "X: " .. ("x"):rep(1e5) .. "\r\n" }.status, 431)
  local strange = client.connect(server.port)
  strange:send "\22\3\1 TLS, or so\r\n\r\n"
  while strange:receive(10) do server:poll() end
  expect_equal(strange:response().status, 400)
  strange:close()
end)

test("requests beyond the queue get the status 429 and are served later", function()
  local requests, n = {}, { [200] = 0, [429] = 0 }
  for i = 1, 100 do
    requests[i] = { path = "/v1/completions", body = { prompt = "the sea", max_tokens = 5 } }
  end
  for _, answer in ipairs(ask_all(requests)) do
    n[answer.status] = n[answer.status] + 1
    if answer.status == 429 then assert(answer.head:find "Retry%-After: %d") end
  end
  assert(n[200] >= 16 and n[429] > 0, n[200])
  expect_equal(completion { prompt = "the sea" }.status, 200)
end)

test("a client that leaves frees its row", function()
  for _, is_stream in ipairs { true, false } do
    local guest = client.connect(server.port)
    guest:send(client.request_text { path = "/v1/completions",
      body = { prompt = "the sea", max_tokens = 50, n = 3, stream = is_stream } })
    repeat until server:poll() > 0
    guest:close()
    local n = 0
    repeat n = n + 1 until server:poll() == 0
    assert(n < 45, "the answer was computed to its end")
    assert(server.batch:is_idle())
  end
end)

test("slow clients do not stop others", function()
  local slow = {}
  for i = 1, 60 do
    slow[i] = client.connect(server.port)
    slow[i]:send "POST /v1/completions HTTP/1.1\r\nContent-Length: 100\r\n\r\n{"
  end
  expect_equal(completion { prompt = "the sea" }.status, 200)
  for _, each in ipairs(slow) do each:close() end
end)

test("a server with a token refuses requests without it", function()
  local guarded = new_server { token = "secret" }
  local function status(path_, header)
    return ask({ path = path_, headers = header }, guarded).status
  end
  expect_equal(status "/health", 200)
  expect_equal(status "/v1/models", 401)
  for _, wrong in ipairs { "Bearer secre", "Bearer secret2", "secret", "Bearer " } do
    expect_equal(status("/v1/models", "Authorization: " .. wrong .. "\r\n"), 401)
  end
  expect_equal(status("/v1/models", "Authorization: Bearer secret\r\n"), 200)
  guarded:close()
end)

test("close ends open answers with an error", function()
  local other = new_server()
  local guests = {}
  for i, is_stream in ipairs { true, false } do
    guests[i] = client.connect(other.port)
    guests[i]:send(client.request_text { path = "/v1/completions",
      body = { prompt = "the sea", max_tokens = 50, stream = is_stream } })
  end
  repeat until other:poll() == 2
  other:close()
  for _, guest in ipairs(guests) do
    while guest:receive(10) do end
    assert(guest:response().body:find "the server ended")
    guest:close()
  end
  assert(not pcall(client.connect, other.port))
end)

test("a server answers between the steps of a training run", function()
  local deployer = redco.Deployer { seed = 1, verbose = false }
  local trainer = redco.Trainer {
    deployer = deployer, params = model.params, optimizer = redco.optim.sgd { learning_rate = 1 },
    collate_fn = function(batch) return { input_ids = torch.tensor(batch) } end,
    loss_fn = function(_, _, params, batch)
      return model(params, batch):log_softmax(-1):select(-1, 5):mean():neg()
    end,
  }
  local trained = redco.serve(model, trainer.params, tokenizer, { port = 0 })
  local examples, texts = {}, {}
  for i = 1, 4 do examples[i] = { 1, 2, 3 } end
  trainer:fit { train_examples = examples, per_device_batch_size = 2, n_epochs = 1,
    on_step = function()
      texts[#texts + 1] = completion({ prompt = "the sea", max_tokens = 4 }, trained)
        .json.choices[1].text
    end }
  expect_equal(#texts, 2)
  expect_equal(texts[2], greedy(tokenizer:encode "the sea", 4, trainer.params))
  assert(texts[1] ~= texts[2], "the steps change nothing")
  trained:close()
end)

test("wrong options are errors", function()
  local function expect(text, options)
    expect_error(function() new_server(options) end, text)
  end
  expect("port", { port = 70000 })
  expect("did you mean 'port'", { prot = 1 })
  expect("give a token", { host = "0.0.0.0" })
  expect("cannot listen at", { host = "no.such.host.invalid" })
  expect("reads at most 64", { max_length = 65 })
  expect("port " .. server.port, { port = server.port })
end)

server:close()
testing.finish()
