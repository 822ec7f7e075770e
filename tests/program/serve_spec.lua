-- redco-lua serve, as clients and a system's manager of services see it.
local client = require "http_client"
local program = require "program"
local redco = require "redco"
local testing = require "testing"

local test, expect_equal, expect_has = testing.test, testing.expect_equal, program.expect_has
local cases = os.getenv "REDCO_SOURCE" .. "/tests/cases/"
local llama = cases .. "llama"

local chat = program.folder .. "/chat"
local tokenizer = redco.Tokenizer.from_pretrained(llama)
tokenizer.chat_template = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"
  .. "{% if add_generation_prompt %}a:{% endif %}"
assert(os.execute(("cp -r '%s' '%s'"):format(llama, chat)) == 0)
tokenizer:save_pretrained(chat)

local function contents(name)
  local file = io.open(program.folder .. "/" .. name)
  local text = file and file:read "*a" or ""
  if file then file:close() end
  return text
end

local serve = '"$REDCO_LUA" serve '

local function wait() assert(os.execute "sleep 0.05" == 0) end

-- Waits until the file has a line that fits, and returns the match.
local function awaited(name, pattern)
  for _ = 1, 1200 do
    local found = contents(name):match(pattern)
    if found then return found end
    wait()
  end
  error(("no %s in %s, which has:\n%s%s"):format(pattern, name, contents(name), contents "err"))
end

-- Serves while body(port, kill) runs, and then ends it with SIGTERM unless body has killed it.
-- Returns the exit code, and what it wrote.
local function served(words, body)
  local script = program.write("serve.sh", ([[
cd '%s'; rm -f out err code pid
%s --port 0 >out 2>err &
echo $! >pid; wait $!; echo $? >code]]):format(program.folder, words))
  for _, name in ipairs { "out", "code", "pid" } do os.remove(program.folder .. "/" .. name) end
  assert(os.execute(("sh '%s' </dev/null &"):format(script)) == 0)
  local pid = awaited("pid", "%d+\n")
  local function kill(signal)
    if pid then os.execute("kill -" .. signal .. " " .. pid) end
    pid = nil
  end
  local ok, message = xpcall(function()
    body(tonumber(awaited("out", "http://%S+:(%d+)/v1\n")), kill)
  end, debug.traceback)
  kill(ok and "TERM" or "KILL")
  local code = tonumber(awaited("code", "%d+"))
  if not ok then error(message, 0) end
  return code, contents "out", contents "err"
end

local function ask_all(port, requests) return client.ask_all(port, requests, function() end) end
local function ask(port, request) return ask_all(port, { request })[1] end

test("serve answers as generate and chat do, and SIGTERM ends it", function()
  local code, out, err = served(serve .. "chat", function(port)
    local _, text = program.run { "generate", chat, "the sea", "--max-new-tokens", "12" }
    local answer = ask(port, { path = "/v1/completions",
      body = { model = "chat", prompt = "the sea", max_tokens = 12, temperature = 0 } })
    expect_equal(answer.json.choices[1].text .. "\n", text)
    _, text = program.run({ "chat", chat, "--max-new-tokens", "8" }, "hi")
    answer = ask(port, { path = "/v1/chat/completions", body = { model = "chat",
      messages = { { role = "user", content = "hi" } }, max_tokens = 8 } })
    expect_equal(answer.json.choices[1].message.content .. "\n", text)
  end)
  expect_equal(code, 0)
  expect_equal(err, "")
  assert(out:find "^chat is served at http://127.0.0.1:%d+/v1\n$", out)
end)

test("serve takes a folder of adapters", function()
  local adapters = cases .. "lora_llama"
  local code, _, err = served(serve .. ("'%s' --base '%s' --name both"):format(adapters, llama),
    function(port)
      local _, text = program.run { "generate", adapters, "the sea", "--max-new-tokens", "12" }
      local answer = ask(port, { path = "/v1/completions",
        body = { model = "both", prompt = "the sea", max_tokens = 12 } })
      expect_equal(answer.json.choices[1].text .. "\n", text)
    end)
  assert(code == 0, err)
end)

local long = { path = "/v1/completions",
  body = { prompt = "the sea", max_tokens = 55, n = 8, temperature = 1, stream = true } }

-- Starts a long answer, sends the signal, and returns the events that came.
local function events_after(port, kill, signal)
  local connection = client.connect(port)
  connection:send(client.request_text(long))
  repeat connection:receive(100) until connection.received:find "data:"
  kill(signal)
  while connection:receive(100) do end
  connection:close()
  return connection:response().body
end

test("SIGTERM lets open answers end, and Ctrl-C cuts them", function()
  local code = served(serve .. "chat", function(port, kill)
    local text = events_after(port, kill, "TERM")
    local _, n_ends = text:gsub('"finish_reason":"', "")
    expect_equal(n_ends, 8)
    expect_has(text, "[DONE]")
  end)
  expect_equal(code, 0)
  local err, _
  code, _, err = served(serve .. "chat", function(port, kill)
    expect_has(events_after(port, kill, "INT"), "the server ended")
  end)
  expect_equal(code, 130)
  expect_equal(err, "redco-lua: interrupted\n")
end)

-- Returns the answers of a server: texts of samples and greedy searches, streamed and whole.
local function answers_at(port)
  local requests, texts = {}, {}
  for i = 1, 12 do
    requests[i] = { path = "/v1/completions", body = { prompt = ("the sea "):rep(1 + i % 3),
      max_tokens = 3 + i, temperature = i % 4 == 0 and 0 or 1, seed = i, n = 1 + i % 2,
      frequency_penalty = i % 5 == 0 and 1 or nil, stream = i % 3 == 0,
      stop = i == 7 and "e" or nil } }
  end
  requests[13] = { path = "/v1/chat/completions", body = { seed = 4, temperature = 1.5,
    messages = { { role = "user", content = "hi" } }, response_format = { type = "json_schema",
      json_schema = { name = "n", schema = { enum = { "sea", "sky", 12 } } } } } }
  for i, answer in ipairs(ask_all(port, requests)) do
    assert(answer.status == 200, answer.body)
    local parts = {}
    for _, event in ipairs(answer.events or { answer.json }) do
      local choices = type(event) == "table" and event.choices or {}
      for _, choice in ipairs(choices) do
        parts[choice.index + 1] = (parts[choice.index + 1] or "")
          .. (choice.text or choice.message.content)
      end
    end
    texts[i] = table.concat(parts, "|")
  end
  return table.concat(texts, "\n")
end

test("several processes give the answers of one, and end together", function()
  local expected
  expect_equal(served(serve .. "chat --max-rows 5", function(port) expected = answers_at(port) end),
    0)
  for _, layout in ipairs { { 2, 1 }, { 2, 2 }, { 4, 2 } } do
    local words = ('"$REDCO_LUA" --nproc %d serve chat --max-rows 5 --n-model-shards %d'):format(
      unpack(layout))
    local code, out, err = served(words, function(port)
      expect_equal(answers_at(port), expected)
      -- A client that leaves frees its row on all.
      local guest = client.connect(port)
      guest:send(client.request_text(long))
      repeat guest:receive(100) until guest.received:find "data:"
      guest:close()
      expect_equal(ask(port, { path = "/v1/completions", body = {} }).status, 400)
      expect_equal(answers_at(port), expected)
    end)
    assert(code == 0, err)
    local _, n_lines = out:gsub("is served at", "")
    expect_equal(n_lines, 1)
  end
end)

test("a server ends when one of its processes does, and its clients learn it", function()
  local words = '"$REDCO_LUA" --nproc 2 serve chat --n-model-shards 2'
  local code, _, err = served(words, function(port, kill)
    local guest = client.connect(port)
    guest:send(client.request_text(long))
    repeat guest:receive(100) until guest.received:find "data:"
    assert(os.execute(("kill -9 $(pgrep -P %s | tail -n 1)"):format(contents "pid":match "%d+"))
      == 0)
    while guest:receive(100) do end
    guest:close()
    awaited("code", "%d+")
    kill "0"
  end)
  assert(code ~= 0)
  expect_has(err, "process 1")
end)

test("a token comes from the flag or the environment", function()
  local function check(port)
    expect_equal(ask(port, { path = "/v1/models" }).status, 401)
    local header = "Authorization: Bearer abc\r\n"
    expect_equal(ask(port, { path = "/v1/models", headers = header }).status, 200)
  end
  expect_equal(served(serve .. "chat --token abc --host localhost", check), 0)
  expect_equal(served("REDCO_SERVE_TOKEN=abc " .. serve .. "chat", check), 0)
end)

test("a thousand connections at once are answered or refused, beside slow clients", function()
  local code, _, err = served(serve .. "chat --max-queue 40", function(port)
    local slow, requests, n = {}, {}, { [200] = 0, [429] = 0 }
    for i = 1, 90 do
      slow[i] = client.connect(port)
      slow[i]:send "POST /v1/completions HTTP/1.1\r\nContent-Len"
    end
    for i = 1, 900 do
      requests[i] = { path = "/v1/completions", body = { prompt = "the sea", max_tokens = 3 } }
    end
    for _, answer in ipairs(ask_all(port, requests)) do n[answer.status] = n[answer.status] + 1 end
    assert(n[200] >= 48 and n[200] + n[429] == 900)
    expect_equal(ask(port, requests[1]).status, 200)
    for _, each in ipairs(slow) do each:close() end
  end)
  assert(code == 0, err)
end)

test("what cannot be served is exit code 1, and wrong usage 2", function()
  local function expect_fails(expected, args, ...)
    local code, out, err = program.run(args)
    expect_equal(code, expected)
    expect_equal(out, "")
    expect_has(err, ...)
    assert(not err:find "traceback" and not err:find "serve:%d", err)
  end
  expect_fails(1, { "serve", "nowhere" }, "no file or folder nowhere here")
  expect_fails(1, { "serve", cases .. "bert" }, "writes no text")
  expect_fails(1, { "serve", cases .. "t5_relu_tied" }, "has an encoder")
  expect_fails(1, { "serve", llama, "--host", "0.0.0.0", "--port", "0" }, "give a token")
  expect_fails(1, { "serve", llama, "--host", "192.0.2.1" }, "cannot listen at 192.0.2.1")
  expect_fails(1, { "serve", llama, "--max-length", "65" }, "reads at most 64")
  expect_fails(2, { "serve" }, "PATH")
  expect_fails(2, { "serve", llama, "--port", "70000" }, "--port", "0 to 65535")
  expect_fails(2, { "serve", llama, "--max-rows", "0" }, "--max-rows")
  expect_fails(2, { "serve", llama, "--temperature", "1" }, "--temperature")
  expect_fails(2, { "--nproc", "2", "chat", llama }, "one process")
  expect_fails(2, { "serve", llama, "--n-model-shards", "0" }, "--n-model-shards")
end)

program.remove_folder()
testing.finish()
