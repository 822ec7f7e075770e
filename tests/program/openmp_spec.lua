-- How long the program's OpenMP threads wait at a barrier before they sleep.
local program = require "program"
local testing = require "testing"

local test, expect_equal = testing.test, testing.expect_equal
local shell, write = program.shell, program.write

local script = write("settings.lua", [[
local _ = require("redco").torch.ones { 2 }
print(os.getenv "GOMP_SPINCOUNT", os.getenv "OMP_WAIT_POLICY", arg[0], arg[1], io.read())]])

-- Runs the script with these settings of the environment. Returns what it printed and the spins
-- that libgomp reports, each time it starts.
local function run(settings, command)
  local code, out, err = shell(("unset GOMP_SPINCOUNT OMP_WAIT_POLICY; echo typed | "
    .. "env OMP_DISPLAY_ENV=verbose %s %s %s word"):format(settings,
      command or '"$REDCO_LUA"', script))
  assert(code == 0, err)
  local spins = {}
  for n in err:gmatch "GOMP_SPINCOUNT = '(%d+)'" do spins[#spins + 1] = n end
  return out, table.concat(spins, " ")
end

local function printed(spins, policy)
  return ("%s\t%s\t%s\tword\ttyped\n"):format(spins, policy, script)
end

test("they spin for a short time, and the program starts once", function()
  local out, spins = run ""
  expect_equal(out, printed("3000", "nil"))
  expect_equal(spins, "3000")
end)

test("the user's settings stay", function()
  local out, spins = run "GOMP_SPINCOUNT=77"
  expect_equal(out, printed("77", "nil"))
  expect_equal(spins, "77")
  out, spins = run "OMP_WAIT_POLICY=PASSIVE"
  expect_equal(out, printed("nil", "PASSIVE"))
  expect_equal(spins, "0")
end)

test("libgomp's own default is still a longer time", function()
  local out, spins = run "REDCO_WITHOUT=event_wait,openmp_wait"
  expect_equal(out, printed("nil", "nil"))
  assert(tonumber(spins) > 3000, "workarounds/openmp_wait.cpp is no longer needed: " .. spins)
end)

test("workers inherit them", function()
  local _, out = shell(("unset GOMP_SPINCOUNT OMP_WAIT_POLICY; \"$REDCO_LUA\" --nproc 2 -e %q")
    :format 'print(os.getenv "GOMP_SPINCOUNT")')
  local lines = {}
  for line in out:gmatch "[^\n]+" do lines[#lines + 1] = line end
  table.sort(lines)
  expect_equal(table.concat(lines, " "), "[0] 3000 [1] 3000")
end)

test("threads that wait for a core of other programs: a line says what to set", function()
  -- The program and a busy loop share one core. It ends when the line has come.
  local path = write("small.lua", [[
local torch = require("redco").torch
local x = torch.ones { 300, 300 }
while true do x = x:matmul(x):tanh() end]])
  local code, _, err = shell(([[
core=$(sed -n 's/^Cpus_allowed_list:[^0-9]*\([0-9]*\).*/\1/p' /proc/self/status)
taskset -c $core sh -c 'while :; do :; done' & loop=$!
OMP_NUM_THREADS=2 taskset -c $core "$REDCO_LUA" %s 2>said & run=$!
for i in $(seq 600); do grep -q busy said && break; kill -0 $run || break; sleep 0.1; done
kill -KILL $loop $run; cat said >&2]]):format(path))
  assert(err:find "redco%-lua: the cores are busy: the threads of this process waited [%d.]+", code
    .. err)
  program.expect_has(err, "OMP_NUM_THREADS=1")
end)

test("a program loader is not started again, and starts the workers", function()
  local code, out = shell '/lib64/ld-linux-x86-64.so.2 "$REDCO_LUA" -e "print(1)"'
  expect_equal(code, 0)
  expect_equal(out, "1\n")
  code, out = shell '/lib64/ld-linux-x86-64.so.2 "$REDCO_LUA" --nproc 2 -e "print(1)"'
  expect_equal(code, 0)
  expect_equal(#out, #"[0] 1\n[1] 1\n")
end)

program.remove_folder()
testing.finish()
