-- Runs of several hosts, here launchers of one machine, beside others who reach their port; and
-- what is said while they wait.
local program = require "program"
local testing = require "testing"

local test, expect_equal = testing.test, testing.expect_equal
local run, shell, write = program.run, program.shell, program.write
local expect_has, seconds = program.expect_has, program.seconds

local port = 21000 + tonumber(tostring(os.time()):sub(-4))
local function next_port()
  port = port + 1
  return port
end

local function read(name) return program.read(program.folder .. "/" .. name) end

-- The start of a launcher: `I PORT`, the rest of its words.
local launcher = '"$REDCO_LUA" --n-processes 2 --host0-address 127.0.0.1 --process-id %d ' ..
  '--host0-port %d %s'

test("hosts find each other by the secret of the user, which the first one makes", function()
  local path = write("meet.lua", [[
local d = require("redco").Deployer { seed = 1, verbose = false }
print("fine", d.n_processes, #os.getenv "REDCO_SECRET")]])
  local at = next_port()
  local code, out, err = shell(([[
export XDG_CONFIG_HOME=$PWD/new
%s & %s; wait $!; echo $?
stat -c %%a new/redco/secret; grep -lr "$(cat new/redco/secret)" /proc/[0-9]*/cmdline]]):format(
    launcher:format(1, at, "--nproc 2 " .. path), launcher:format(0, at, "--nproc 2 " .. path)))
  assert(code, err)
  expect_has(out, "[0] fine\t4\t64\n", "[3] fine\t4\t64\n", "\n0\n600\n")
end)

test("a host with another secret is refused, and both hosts say so", function()
  local at = next_port()
  local path = write("waits.lua", "require('redco').Deployer { seed = 1 }")
  local code, out, err = shell(([[
printf 0123456789abcdef0123456789abcdef >a; printf fedcba9876543210fedcba9876543210 >b; chmod 600 a b
%s 2>first.err & first=$!
from=$(date +%%s); %s 2>second.err; echo $? $(( $(date +%%s) - from < 50 ))
sleep 0.5; kill $first; wait $first; echo $?]]):format(
    launcher:format(0, at, "--secret-file a --nproc 2 " .. path),
    launcher:format(1, at, "--secret-file b --nproc 2 " .. path)))
  assert(code, err)
  expect_equal(out, "1 1\n143\n")
  expect_has(read "second.err", "refuses this process's secret, of the file b", "--secret-file")
  expect_has(read "first.err", "refused 127.0.0.1, which does not have the run's secret")
end)

test("secrets that others can read, that are short or missing, are wrong usage", function()
  write("open", "0123456789abcdef")
  write("short", "012345")
  for name, text in pairs { open = "other users can read", short = "of 6 characters",
    none = "there is no file" } do
    local code, out, err = shell(("chmod 600 short; chmod 644 open; " .. launcher):format(1,
      next_port(), "--nproc 2 --secret-file " .. name .. " x.lua"))
    expect_equal(code, 2)
    expect_has(out .. err, text)
  end
end)

test("what --secret-file names must be there, though one host needs no secret", function()
  for _, words in ipairs { "", "--nproc 2 " } do
    local code, _, err = shell(('"$REDCO_LUA" --secret-file nowhere %s-e "print(1)"')
      :format(words))
    expect_equal(code, 2)
    expect_has(err, "there is no file nowhere")
  end
end)

test("processes of one host have a secret that nobody is told", function()
  local path = write("secret.lua", [[
require("redco").Deployer { seed = 1, verbose = false }
io.write(os.getenv "REDCO_SECRET", " ", os.getenv "MASTER_PORT", "\n")]])
  local code, out, err = shell(([[
export XDG_CONFIG_HOME=$PWD/none
"$REDCO_LUA" --nproc 2 %s; "$REDCO_LUA" --nproc 2 %s; ls -a none]]):format(path, path))
  assert(code ~= 0, "a secret was made for one host")
  local found = {}
  for secret in out:gmatch "(%x+) %d+\n" do found[#found + 1] = secret end
  expect_equal(#found, 4)
  assert(#found[1] == 64 and found[1] ~= found[4] and err:find "none", err)
end)

test("a failure's text reaches terminals without control characters", function()
  local path = write("colors.lua", [[
local d = require("redco").Deployer { seed = 1, verbose = false }
if d.process_id == 1 then error "\27]0;title\7\27[2Jred" end
d.gen_rng(d)
require("redco").Deployer { seed = 2, verbose = false }]])
  local code, _, err = run { "--nproc", "2", path }
  expect_equal(code, 1)
  for line in err:gmatch "[^\n]+" do
    assert(line:find("^%[1%]") or not line:find "[%z\1-\8\11-\31]", line)
  end
  expect_has(err, "process 1 of 2 failed first: ", [[\x1b]0;title\x07\x1b[2Jred]])
end)

test("what is awaited is said within two seconds, and again", function()
  local script = write("awaited.lua", "require('redco').Deployer { seed = 1, verbose = false }")
  local placed = "REDCO_N_PROCESSES=2 REDCO_PROCESS_ID=%d REDCO_HOST0_ADDRESS=%s " ..
    "REDCO_HOST0_PORT=%d \"$REDCO_LUA\" %s >%d.out 2>&1 & pids=\"$pids $!\"\n"
  local nowhere = "no%-such%-host.invalid:%d+ %(cannot resolve"
  local cases = {
    { nowhere, 1, "no-such-host.invalid" },
    { "the store of the run at 127.0.0.1:%d+ %(Connection refused", 1, "127.0.0.1" },
    { "process 1 to come", 0, "127.0.0.1" },
    { nowhere, 1, "no-such-host.invalid", "--nproc 2 " },
    { "the address no%-such%-host.invalid to be resolved", 0, "no-such-host.invalid",
      "--nproc 2 " },
    { "the store of the run at 127.0.0.1:%d+ %(Connection refused", 1, "127.0.0.1", "--nproc 2 " },
    { "the launchers of these of 2 hosts: 1", 0, "127.0.0.1", "--nproc 2 " },
  }
  local all = {}
  for i, case in ipairs(cases) do
    all[i] = placed:format(case[2], case[3], next_port(), (case[4] or "") .. script, i)
  end
  -- And a launcher whose processes take their time to save.
  local slow = write("slow.lua", [[
local ffi = require "ffi"
ffi.cdef "void (*signal(int, void (*)(int)))(int);"
ffi.C.signal(15, ffi.cast("void (*)(int)", 1))
io.open("slow", "w"):close()
os.execute "sleep 30"]])
  all[#all + 1] = ([[
"$REDCO_LUA" --nproc 2 %s >8.out 2>&1 & slow=$!
for i in $(seq 200); do [ -e slow ] && break; sleep 0.05; done
kill $slow
for i in $(seq 300); do [ $(grep -l "still waiting" [1-8].out | wc -l) = 8 ] && break; sleep 0.05; done
kill -KILL $slow $pids; wait; true]]):format(slow)
  cases[8] = { "the processes of this host, which signal 15 asked to end" }
  shell(table.concat(all))
  for i, case in ipairs(cases) do
    local out = read(i .. ".out")
    assert(out:find("redco%-lua: still waiting after 2 s for [^\n]*" .. case[1]), case[1]
      .. "\n" .. out)
  end
end)

test("a port that is none is wrong usage, at once", function()
  for _, words in ipairs { "--nproc 2", "" } do
    local from = seconds()
    local code, out, err = shell(launcher:format(0, 0, words .. " x.lua"))
    expect_equal(code, 2)
    expect_has(out .. err, "there is no port 0", "1 to 65535")
    assert(seconds() - from < 50)
  end
end)

program.remove_folder()
testing.finish()
