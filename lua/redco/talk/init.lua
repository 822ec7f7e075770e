--- `redco-lua chat`, `generate` and `serve`: text of a model, written as it comes.
local fail = require "redco.fail"
local native = require "redco.native"
local open = require "redco.talk.writer"
local processes = require "redco.serve.processes"
local serve = require "redco.serve"

local talk = {}

local function show(text)
  io.write(text)
  io.flush()
end

-- Reads a turn, of several lines if they end in a backslash; nil at the end of the input.
local function read_turn(ask)
  local lines, is_open = {}, true
  while is_open do
    ask(#lines == 0 and "> " or ". ")
    local line = io.read "*l"
    if not line then break end
    line = line:gsub("\r$", "")
    is_open = line:sub(-1) == "\\"
    lines[#lines + 1] = is_open and line:sub(1, -2) or line
  end
  return lines[1] and table.concat(lines, "\n")
end

-- Answers the last message and appends the answer. Ctrl-C ends the answer, a second one the
-- program.
local function answer(writer, messages)
  local prompt = writer.tokenizer:apply_chat_template(messages, { add_generation_prompt = true })
  local parts = {}
  local ok, message = pcall(writer.write, writer, prompt, function(text)
    parts[#parts + 1] = text
    show(text)
  end)
  if not ok and not tostring(message):find "interrupted$" then error(message, 0) end
  show "\n"
  messages[#messages + 1] = { role = "assistant", content = table.concat(parts) }
end

local function new_conversation(o)
  return o.system and { { role = "system", content = o.system } } or {}
end

--- Talks with the model of the path: each turn of standard input is a message. `o.is_terminal` says
--- whether a person types them. Then an error ends only the turn.
function talk.chat(path, o)
  local writer = open(path, o)
  if not writer.tokenizer.chat_template then
    fail("%s has no chat template; redco-lua generate continues a text", path)
  end
  writer:load()
  local function tell(text)
    if o.is_terminal then io.stderr:write(text) end
  end
  tell "/reset forgets the conversation, /exit or Ctrl-D ends. A line that ends in \\ goes on.\n"
  local messages = new_conversation(o)
  for turn in function() return read_turn(tell) end do
    if turn == "/exit" then return end
    if turn == "/reset" then
      messages = new_conversation(o)
    elseif turn:find "%S" then
      messages[#messages + 1] = { role = "user", content = turn }
      local ok, message = pcall(answer, writer, messages)
      if not ok then
        if not o.is_terminal then error(message, 0) end
        tell((tostring(message):gsub("^chat:%d+: ", "")) .. "\n")
        messages[#messages] = nil
      end
    end
  end
  tell "\n"
end

--- Writes what the model of the path writes after the prompt, or after standard input if it is nil.
function talk.generate(path, o, prompt)
  local writer = open(path, o)
  prompt = prompt or io.read "*a":gsub("\r?\n$", "")
  writer:load()
  writer:write(writer.tokenizer:encode(prompt), show)
  show "\n"
end

--- Serves the model of the path to clients of the OpenAI API, until SIGTERM or Ctrl-C. `o` also has
--- the options of redco.serve.
function talk.serve(path, o)
  local writer = open(path, o)
  local deployer = native.Deployer { seed = 0, verbose = false, n_model_shards = o.n_model_shards }
  writer:load()
  local params = writer.params
  if deployer.n_processes > 1 then
    params = processes.lay_out(deployer, writer.model, params)
    writer.params, writer.model.params = nil, nil
  end
  local name = o.name or path:match "([^/]+)/*$":gsub("%.gguf$", "")
  local server = serve(writer.model, params, writer.tokenizer, {
    host = o.host, port = o.port, token = o.token or os.getenv "REDCO_SERVE_TOKEN", name = name,
    max_rows = o.max_rows, kept_rows = o.kept_rows, max_queue = o.max_queue,
    max_length = o.max_length, deployer = deployer,
  })
  if server.is_first then show(("%s is served at %s\n"):format(server.name, server.url)) end
  server:run()
end

return talk
