--- A prompt on standard input: expressions are printed, chunks may span lines.
local registry = require "redco.registry"

local function load_chunk(text)
  local chunk = loadstring("return " .. text, "=stdin")
  if chunk then return chunk end
  local message
  chunk, message = loadstring(text, "=stdin")
  -- Lua says of a chunk that only lacks its end that the end of the file is near.
  return chunk, message, message and message:find("<eof>", 1, true) ~= nil
end

local function print_results(ok, ...)
  if not ok then
    io.stderr:write(tostring((...)), "\n")
  elseif select("#", ...) > 0 then
    print(...)
  end
end

local function repl()
  -- A traced loop cannot be interrupted, and at a prompt globals are how one keeps a value.
  jit.off()
  setmetatable(_G, nil)
  rawset(_G, "redco", require "redco")
  rawset(_G, "torch", require "redco.torch")
  local text = ""
  while true do
    io.write(text == "" and "> " or ">> ")
    io.flush()
    local line = io.read("*l")
    if not line then break end
    text = text == "" and line or text .. "\n" .. line
    local chunk, message, incomplete = load_chunk(text)
    if chunk then
      print_results(xpcall(chunk, debug.traceback))
      text = ""
    elseif not incomplete then
      io.stderr:write(message, "\n")
      text = ""
    end
  end
  print()
end

return registry.define("redco.repl", [[
repl()
Reads Lua from the standard input, chunk by chunk, until its end. Expressions are printed; an error
ends only its chunk. Globals are free, `redco` and `torch` are there.]], repl)
