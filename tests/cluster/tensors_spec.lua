-- The Lua surface of sharded tensors, in two and in four processes.
local program = require "program"
local testing = require "testing"

local here = assert(os.getenv "PWD")

for _, n in ipairs { 2, 4 } do
  testing.test(n .. " processes", function()
    local code, out, err =
      program.run { "--nproc", tostring(n), here .. "/tensors.lua", program.folder }
    if code ~= 0 then error(("exit code %d\n%s%s"):format(code, out, err)) end
  end)
end

program.remove_folder()
testing.finish()
