-- Two hosts train, and somebody on the network who knows all but the run's secret reaches its
-- store.
local hosts = require "hosts"
local program = require "program"
local runs = require "runs"
local testing = require "testing"

hosts.need("bash")

local test, expect_equal = testing.test, testing.expect_equal
local expect_has = program.expect_has

local function read(name) return program.read(program.folder .. "/" .. name) end

local placed = "--n-processes 2 --process-id %d --host0-address 10.77.0.1 --host0-port 6001 %s"
local words = ("--nproc 2 --max-restarts 2 %s --pause=0.3"):format(runs.words(4, "run",
  "death.lua"))

-- Writes a failure as the store's clients do, but not by TLS; fills the store with connections; and
-- looks at which addresses it listens.
local strangers = program.write("strangers.sh", [[
say() { exec 3<>/dev/tcp/10.77.0.1/6001 && printf "$1" 2>/dev/null >&3; timeout 1 cat <&3 2>/dev/null | wc -c; exec 3>&-; }
say '\x20\0\0\0\0\x0f\0\0\0redco//0/failure\x04\0\0\0000 0\n'
say 'GET / HTTP/1.0\r\n\r\n'
for i in $(seq 10 200); do eval "exec $i<>/dev/tcp/10.77.0.1/6001" || exit 1; done
sleep 1
]])
program.shell(([[
export XDG_CONFIG_HOME=$PWD/config
mkdir run
%s"$REDCO_LUA" %s >0.out 2>&1 & first=$!
%s"$REDCO_LUA" %s >1.out 2>&1 & second=$!
until [ -e run/notes ]; do sleep 0.1; done
%sbash %s >said 2>&1
REDCO_SECRET=0123456789abcdef %s"$REDCO_LUA" %s >stranger.out 2>&1; echo $? >stranger.code
for address in 127.0.0.1 ::1; do
  %sbash -c "exec 3<>/dev/tcp/$address/6001" 2>/dev/null && echo "listens at $address" >>said
done
wait $first; echo $? >0.code; wait $second; echo $? >1.code]]):format(
  hosts.on(1), placed:format(0, words), hosts.on(2), placed:format(1, words), hosts.on(2),
    strangers,
  hosts.on(2), placed:format(1, words), hosts.on(1)))

test("strangers neither end a run nor change it", function()
  for i = 0, 1 do
    local out = read(i .. ".out")
    assert(read(i .. ".code") == "0\n", out)
    assert(not out:find "restart" and not out:find "failed first", out)
  end
  runs.expect_as_alone "run"
  expect_has(read "0.out", "the store of the run refused 10.77.0.2, which does not have the run's")
end)

test("they are told nothing, and are refused at once", function()
  -- Bytes: TLS may say that it has been spoken to in another way.
  local said = read "said"
  assert(said:find "^%d\n%d\n$", said)
  expect_equal(read "stranger.code", "1\n")
  expect_has(read "stranger.out", "refuses this process's secret, of the variable REDCO_SECRET")
end)

program.remove_folder()
testing.finish()
