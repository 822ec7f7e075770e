-- redco-lua as one of several launchers, its restarts, and what ends a run for good.
local program = require "program"
local testing = require "testing"

local test, expect_equal = testing.test, testing.expect_equal
local run, shell, write = program.run, program.shell, program.write
local expect_has = program.expect_has

local function expect_code(code, actual, out, err)
  if actual ~= code then
    error(("expected exit code %d, got %d\n%s%s"):format(code, actual, out, err), 2)
  end
end

-- The start of scripts here: `d` knows the process.
local head = "local d = require('redco').Deployer { seed = 1, verbose = false }\n"

test("after a failure the script runs again, as often as it may", function()
  local path = write("again.lua", head .. [[
local attempt = tonumber(os.getenv "TORCHELASTIC_RESTART_COUNT")
if d.process_id == 1 and attempt < tonumber(arg[1]) then error("attempt " .. attempt) end
print("done in", attempt)
require("redco").Deployer { seed = 2, verbose = false }]])
  local code, out, err = run { "--nproc", "2", "--max-restarts", "3", path, "2" }
  expect_code(0, code, out, err)
  assert(out:find "%[0%] done in\t2\n" and out:find "%[1%] done in\t2\n", out)
  expect_has(err, "process 1 of 2 failed first: " .. path .. ":3: attempt 0",
    "redco-lua: restart 1 of 3, with processes 0 to 1 of 2 on this host\n",
    "process 1 of 2 failed first: " .. path .. ":3: attempt 1", "redco-lua: restart 2 of 3, ")
  code, out, err = run { "--nproc", "2", "--max-restarts", "1", path, "9" }
  expect_code(1, code, out, err)
  expect_has(err, "redco-lua: restart 1 of 1, ", ":3: attempt 1")
  assert(not err:find "attempt 2", err)
  -- One process too.
  code, out, err = run { "--max-restarts", "1", "-e",
    "if os.getenv 'TORCHELASTIC_RESTART_COUNT' == '0' then os.exit(7) end print 'fine'" }
  expect_code(0, code, out, err)
  expect_equal(out, "[0] fine\n")
  expect_has(err, "process 0 of 1 failed first: ended with exit code 7")
end)

test("wrong usage, and what a signal ended, does not run again", function()
  for _, case in ipairs {
    { 2, "require('redco').Deployer { seed = 1, n_model_shards = 3 }" },
    { 143, "if os.getenv 'RANK' == '1' then os.exit(143) end " .. head },
  } do
    local code, out, err = run { "--nproc", "2", "--max-restarts", "3",
      write("final.lua", case[2]) }
    expect_code(case[1], code, out, err)
    assert(not err:find "restart", err)
  end
end)

test("the place among several machines is an option or a variable", function()
  local path = write("placed.lua", "print(require('redco').Deployer { seed = 1 }.process_id)")
  local code, out, err = run { "--n-processes", "1", path }
  expect_code(0, code, out, err)
  for _, words in ipairs {
    "--n-processes 2 --nproc 2", "--n-processes 2 --process-id 2 --host0-address h",
    "--n-processes x", "--process-id 1", "--host0-address h --nproc 2",
    "--n-processes 2 --process-id 1", "--n-processes 2 --process-id 1 --host0-address h:1",
    "--min-processes 3 --nproc 2 --max-restarts 1", "--min-processes 1",
  } do
    local _
    code, _, err = shell(('"$REDCO_LUA" %s %s'):format(words, path))
    expect_equal(code, 2)
    assert(err:find "n_processes" or err:find "REDCO_N_PROCESSES" or err:find "host0_port"
      or err:find "%-%-min%-processes", err)
  end
  local port = 20000 + tonumber(tostring(os.time()):sub(-4))
  code, out, err = shell(([[
export REDCO_N_PROCESSES=2 REDCO_HOST0_ADDRESS=127.0.0.1 REDCO_HOST0_PORT=%d
REDCO_PROCESS_ID=0 "$REDCO_LUA" %s & "$REDCO_LUA" --process-id 1 %s; wait]]):format(port, path,
    path))
  expect_code(0, code, out, err)
  assert(out == "0\n1\n" or out == "1\n0\n", out)
  expect_has(err, "2 processes connected at 127.0.0.1:" .. port
    .. " (by REDCO_N_PROCESSES and REDCO_PROCESS_ID)")
end)

-- The worker that saves takes longer than others get to end after a failure.
test("workers that SIGTERM or SIGUSR1 asks to save get the time for it", function()
  local numbers = { TERM = 15, USR1 = 10 }
  local lines = {}
  for signal, number in pairs(numbers) do
    local path = write(signal .. ".lua", head .. ([[
local ffi = require "ffi"
ffi.cdef "void (*signal(int, void (*)(int)))(int); unsigned sleep(unsigned);"
ffi.C.signal(%d, ffi.cast("void (*)(int)", 1))
io.open(%q .. d.process_id, "w"):close()
ffi.C.sleep(1)
if d.process_id == 1 then os.exit(%d) end
ffi.C.sleep(5)
print "saved"
os.exit(%d)]]):format(number, program.folder .. "/ready" .. signal, 128 + number, 128 + number))
    lines[#lines + 1] = ([[
{ "$REDCO_LUA" --nproc 2 --max-restarts 3 %s >%s.out 2>&1 &
until [ -e ready%s0 ] && [ -e ready%s1 ]; do sleep 0.05; done
kill -%s $!
wait $!
echo "code $?" >>%s.out; } &]]):format(path, signal, signal, signal, signal, signal)
  end
  shell(table.concat(lines, "\n") .. "\nwait")
  for signal, number in pairs(numbers) do
    local out = program.read(program.folder .. "/" .. signal .. ".out")
    expect_equal(out:gsub("redco%-lua: still waiting [^\n]*\n", ""),
      ("[0] saved\ncode %d\n"):format(128 + number))
    expect_has(out, "the processes of this host, which signal " .. number .. " asked to end")
  end
end)

program.remove_folder()
testing.finish()
