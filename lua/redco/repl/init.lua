--- The prompt of a program that has none of its own, on standard input and output:
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
Reads Lua from the standard input, chunk by chunk, until its end or `:q`; prints values, and errors
on the standard error. For other programs than `redco-lua`, whose prompt it is but for keys: lines
are not edited, and Ctrl-C ends the program.]], function()
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
