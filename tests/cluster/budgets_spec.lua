-- What steps send, counted, in two processes.
local program = require "program"
local testing = require "testing"

local here = assert(os.getenv "PWD")

testing.test("2 processes", function()
  local code, out, err = program.run { "--nproc", "2", here .. "/budgets.lua" }
  if code ~= 0 then error(("exit code %d\n%s%s"):format(code, out, err)) end
end)

program.remove_folder()
testing.finish()
