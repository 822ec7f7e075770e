-- A function that runs scripts of this folder, which test themselves, in several processes.
local program = require "program"
local testing = require "testing"

local here = assert(os.getenv "REDCO_SOURCE") .. "/tests/cluster"

--- Runs the scripts in turn in `n` processes.
return function(n, scripts, environment)
  testing.test(("%s in %d processes"):format(scripts:gsub(" ", ", "), n), function()
    local words = {}
    for script in scripts:gmatch "%S+" do
      words[#words + 1] = ("'%s/%s.lua'%s"):format(here, script,
        script == "operators" and "" or (" '%s'"):format(program.folder))  -- its words are options
    end
    local command = "%s \"$REDCO_LUA\" --nproc %d '%s/../program/in_turn.lua' %s </dev/null"
    local code, out, err = program.shell(command:format(environment or "", n, here,
      table.concat(words, " -- ")))
    if code ~= 0 then error(("exit code %d\n%s%s"):format(code, out, err)) end
  end)
end
