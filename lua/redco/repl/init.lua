--- A prompt on standard input and output for programs other than redco-lua:
--- luajit -e 'require "redco.repl"()'.
local registry = require "redco.registry"
local session = require "redco.repl.session"

local function show(answer)
  if answer.text then print(answer.text) end
  for _, part in ipairs { "message", "traceback", "hint" } do
    if answer[part] then io.stderr:write(answer[part], "\n") end
  end
end

local function ask(sign)
  io.write(sign)
  io.flush()
end

return registry.define("redco.repl", [[
redco.repl()
Runs a prompt for programs other than `redco-lua`. It reads Lua from standard input, chunk by chunk,
until the end of input or `:q`, prints values to standard output and errors to standard error. Lines
cannot be edited, and Ctrl-C ends the program; otherwise it equals the prompt of `redco-lua`.]],
function()
  local prompt = session.new { width = 80, colors = false }
  ask "> "
  for line in io.lines() do
    local status, chunk = prompt:feed(line)
    if status == "quit" then break end
    if status == "chunk" then show(prompt:run(chunk)) end
    ask(status == "more" and ">> " or "> ")
  end
  print()
end)
