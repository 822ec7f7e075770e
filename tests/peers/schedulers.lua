-- schedulers.lua FILE: checks the tables of schedulers_peer.py, and reports all that differ.
package.path = "../lua/?.lua;" .. package.path
local cases = require "scheduler_cases"
local redco = require "redco"

local wrong = 0
for _, case in ipairs(redco.data.json(arg[1])) do
  local ok, message = pcall(cases.check_steps, case, case.tolerance)
  if not ok then
    wrong = wrong + 1
    print(message, case.described)
  end
end
if wrong > 0 then os.exit(1) end
