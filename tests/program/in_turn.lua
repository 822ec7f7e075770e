-- in_turn.lua SCRIPT ARGUMENT... [-- SCRIPT ARGUMENT...]...: runs scripts one after another in one
-- process, each as if it was the program's, because the start of a process takes longer than they.
local runs = { {} }
for _, word in ipairs(arg) do
  if word == "--" then runs[#runs + 1] = {} else table.insert(runs[#runs], word) end
end
for _, run in ipairs(runs) do
  local script = table.remove(run, 1)
  rawset(_G, "arg", { [0] = script, unpack(run) })
  local ok, message = xpcall(assert(loadfile(script)), debug.traceback)
  if not ok then
    error(("%s %s\n%s"):format(script, table.concat(run, " "), tostring(message)), 0)
  end
  collectgarbage()
end
