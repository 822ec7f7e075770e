-- The processes that tests get from the fork server are like those that a shell starts.
local program = require "program"
local testing = require "testing"

local test, expect_equal, shell = testing.test, testing.expect_equal, program.shell

local ffi = require "ffi"
ffi.cdef "long syscall(long number, ...); int getpid(void);"
local pidfd_open = 434

if testing.is_full or os.getenv "REDCO_SANITIZE" == "1" then
  print "there is no fork server in full and sanitized tests"
  os.exit(77)
elseif ffi.C.syscall(pidfd_open, ffi.new("long", ffi.C.getpid()), ffi.new("long", 0)) < 0 then
  print "there is no fork server without pidfd_open"
  os.exit(77)
end

program.write("where.lua", [[
local function read(path) return io.open(path):read "*a" end
local parent = read "/proc/self/stat":match "^%d+ %b() %S+ (%d+)"
local variables = read("/proc/" .. parent .. "/environ")
print(variables:find("REDCO_FORK_SERVER=", 1, true) and "forked" or "started")]])

test("a process is forked, and started where a library would read other variables", function()
  for command, expected in pairs {
    [""] = "forked", ["OMP_NUM_THREADS=2"] = "started", ["REDCO_FORK_SERVER=off"] = "started",
    ["LD_LIBRARY_PATH=/nowhere"] = "started", ["GOMP_SPINCOUNT=7"] = "started",
    ["REDCO_TEST_FULL=1"] = "started", ["HOME=/nowhere"] = "forked",
    ["exec 9<where.lua;"] = "forked",
  } do
    local _, out, err = shell(command .. ' "$REDCO_LUA" where.lua </dev/null')
    assert(out == expected .. "\n", command .. ": " .. out .. err)
  end
end)

test("it has the arguments, variables, files, folder, limits and masks of its client", function()
  program.write("state.lua", [[
print(arg[0], arg[1], arg[2])
print(os.getenv "FORK_SERVER_TEST")
print(io.read "*l")
io.stdout:flush()
io.stderr:write "error\n"
os.execute "cat <&9; pwd; umask; ulimit -n; tr -s '\\0' ' ' </proc/$PPID/cmdline"]])
  local code, out, err = shell [[
mkdir -p inner; cd inner; echo nine >../nine; exec 9<../nine
ulimit -n 77; umask 0123
echo text | FORK_SERVER_TEST="a b" "$REDCO_LUA" ../state.lua "x y" ""; exit $?]]
  expect_equal(code, 0)
  expect_equal(err, "error\n")
  local path = os.getenv "REDCO_LUA"
  local shown = "../state.lua\tx y\t\na b\ntext\nnine\n%s/inner\n0123\n77\n%s ../state.lua x y"
  expect_equal((out:gsub("%s*$", "")), shown:format(program.folder, path))
end)

test("its end is that of its client", function()
  for piece, expected in pairs {
    [""] = 0, ["os.exit(3)"] = 3, ["error 'wrong'"] = 1, ["os.execute 'kill -KILL $PPID'"] = 137,
    ["os.execute 'kill -SEGV $PPID'"] = 139,
  } do
    program.write("ends.lua", piece)
    local _, out = shell('"$REDCO_LUA" ends.lua </dev/null 2>/dev/null; echo $?')
    expect_equal(out, expected .. "\n")
  end
end)

test("it gets the signals of its client, and ends with it", function()
  program.write("waits.lua", [[
local file = io.open("pid", "w")
file:write(io.open "/proc/self/stat":read "*a":match "^%d+")
file:close()
while true do end]])
  for signal, expected in pairs { INT = 130, TERM = 143, KILL = 137 } do
    local _, out = shell(([[
rm -f pid; "$REDCO_LUA" waits.lua </dev/null 2>/dev/null & client=$!
until [ -s pid ]; do sleep 0.02; done
kill -%s $client; wait $client; echo $?
for i in $(seq 100); do kill -0 $(cat pid) 2>/dev/null || break; sleep 0.02; done
kill -0 $(cat pid) 2>/dev/null && echo left]]):format(signal))
    expect_equal(out, expected .. "\n")
  end
end)

program.remove_folder()
testing.finish()
