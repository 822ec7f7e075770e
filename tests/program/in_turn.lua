-- in_turn.lua SCRIPT ARGUMENT... [-- SCRIPT ARGUMENT...]...: runs scripts one after another in one
-- process, each as if it was the program's, because the start of a process takes longer than they.
-- If one fails the others do not run, but with IN_TURN_MARK, which ends what each has written.
local native = require "redco.native"

local mark, path = os.getenv "IN_TURN_MARK", package.path

local runs = { {} }
for _, word in ipairs(arg) do
  if word == "--" then runs[#runs + 1] = {} else table.insert(runs[#runs], word) end
end
for _, run in ipairs(runs) do
  local script = table.remove(run, 1)
  rawset(_G, "arg", { [0] = script, unpack(run) })
  package.path = (script:match "^.*/" or "") .. "?.lua;" .. path  -- as of a program's script
  local ok, message = xpcall(function() assert(loadfile(script))(unpack(run)) end, debug.traceback)
  if not ok then
    message = ("%s %s\n%s"):format(script, table.concat(run, " "), tostring(message))
    if not mark then error(message, 0) end
    io.stderr:write(message, "\n")
  end
  if mark then
    io.stdout:write(mark, ok and "ends\n" or "fails\n")
    io.stderr:write(mark, "\n")
  end
  -- Modules that are files beside the script are loaded anew by the next one.
  for name in pairs(package.loaded) do
    if package.searchpath(name, package.path) then package.loaded[name] = nil end
  end
  native.forget_mesh()
  collectgarbage()
  collectgarbage()
end
