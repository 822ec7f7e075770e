-- The command line that `redco-lua --help` describes is the one of help.txt. A wanted change is
-- recorded by: build/release/redco-lua --help >tests/program/help.txt
local program = require "program"
local testing = require "testing"

testing.test("redco-lua --help is as frozen in help.txt", function()
  local code, out = program.run { "--help" }
  testing.expect_equal(code, 0)
  local source = os.getenv "REDCO_SOURCE"
  testing.expect_equal(out, program.read(source .. "/tests/program/help.txt"))
end)

program.remove_folder()
testing.finish()
