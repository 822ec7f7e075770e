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

-- The words of a worker for each flag, or false for a flag of the launcher.
local of_workers = {
  ["-e"] = "-e one -e two", ["-l"] = "-l math", ["-i"] = "-i", ["--no-strict"] = "--no-strict",
  ["--report-sharding"] = "--report-sharding", ["--nproc"] = false, ["--n-processes"] = false,
  ["--process-id"] = false, ["--host0-address"] = false, ["--host0-port"] = false,
  ["--secret-file"] = false, ["--max-restarts"] = false, ["--min-processes"] = false,
  ["--rejoin-timeout"] = false, ["--completion"] = false, ["--version"] = false, ["-h"] = false,
  ["--download"] = false,  -- it sets HF_HUB_OFFLINE, which workers inherit
}

testing.test("each flag of --help either reaches the workers or is the launcher's", function()
  local _, help = program.run { "--help" }
  local n_flags, n_known = 0, 0
  for flag in help:gmatch "\n  (%-[%w%-]+)" do
    n_flags = n_flags + 1
    assert(of_workers[flag] ~= nil, "say in this spec whether workers get " .. flag)
  end
  for _ in pairs(of_workers) do n_known = n_known + 1 end
  testing.expect_equal(n_flags, n_known)
  local path = program.write("words.lua", [[
print((io.open "/proc/self/cmdline":read "*a":gsub("%z", " ")))]])
  local code, out, err = program.run { "--report-sharding", "-i", "-l", "math", "--no_strict", "-e",
    "one = 1", "--nproc", "2", "-e", "two = 2", path, "--nproc", "3" }
  assert(code == 0, err)
  program.expect_has(out, "[all] redco-lua ", path .. " --nproc 3 \n")
  for _, words in pairs(of_workers) do
    if words then program.expect_has(out, (words:gsub("one", "one = 1"):gsub("two", "two = 2"))) end
  end
  assert(not out:find("--nproc 2", 1, true), out)
end)

program.remove_folder()
testing.finish()
