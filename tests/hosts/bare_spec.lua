-- Two hosts that only know an address of the first.
local hosts = require "hosts"
local program = require "program"
local runs = require "runs"
local testing = require "testing"

local test, expect_equal = testing.test, testing.expect_equal
local expect_has = program.expect_has

-- A shell command that starts the words of redco-lua on a host, 0 or 1, with two processes, beside
-- what runs already. `$NAME0` and `$NAME1` are the launchers.
local function start_one(name, i, words)
  return ([[
%s"$REDCO_LUA" --n-processes 2 --process-id %d --nproc 2 %s >>%s%d.out 2>&1 &
%s%d=$!
]]):format(hosts.on(i + 1), i, words, name, i, name, i)
end

local function start(name, words)
  return start_one(name, 0, words) .. start_one(name, 1, words)
end

-- A shell command that waits for their ends, and notes how and when they came.
local function wait(name)
  return ([[
wait $%s0; echo $? >%s0.code; wait $%s1; echo $? >%s1.code; date +%%s.%%N >%s.ended
]]):format(name, name, name, name, name)
end

local function read(name) return program.read(program.folder .. "/" .. name) end

-- Fails unless both ended with the exit code; returns what came out.
local function expect_code(name, code)
  local first, second = read(name .. "0.out"), read(name .. "1.out")
  for i, out in ipairs { first, second } do
    local actual = tonumber(read(name .. i - 1 .. ".code"))
    if actual ~= code then
      error(("host %d of %s: exit code %d, expected %d\n%s"):format(i, name, actual, code, out), 2)
    end
  end
  return first, second
end

local function expect_none_left()
  local _, left = program.shell("grep -ls -e [-]-workdir= /proc/[0-9]*/cmdline")
  assert(left == "", "processes are left: " .. left)
end

local addresses = { ipv4 = "10.77.0.1", name = "host1" }
if os.execute(hosts.on(1) .. "ip -6 address | grep -q fd77") == 0 then
  addresses.ipv6 = "fd77::1"
end
local all = {}
for name, address in pairs(addresses) do
  all[#all + 1] = start(name, ("--host0-address %s --host0-port %d %s"):format(address, 3000 + #all,
    runs.words(4, name)))
end
for name in pairs(addresses) do all[#all + 1] = wait(name) end
program.shell(table.concat(all, "\n"))

for name, address in pairs(addresses) do
  test("two processes on each of two hosts train: " .. name, function()
    local _, second = expect_code(name, 0)
    expect_has(second, "host 1 of 2, as REDCO_N_PROCESSES and REDCO_PROCESS_ID say, runs " ..
      "processes 2 to 3 of 4, which meet at " .. address .. ":300")
    runs.expect_as_alone(name)
  end)
end

-- Three runs side by side, with slow steps, when the cable is cut: one that ends, one that waits
-- for the other host and one that goes on without. Once the first and the last have done so it is
-- back.
local cut = {}
for i, each in ipairs {
  { "ends" },
  { "waits", "--max-restarts 2" },
  { "halves", "--max-restarts 1 --min-processes 1", "--rejoin-timeout 2", "--slow_attempts=2" },
} do
  local name, restarts, of_first, slow = unpack(each)
  local words = ("--host0-address 10.77.0.1 --host0-port %d %s %s --pause=0.5 %s"):format(4000 + i,
    restarts or "", runs.words(4, name, "death.lua"), slow or "")
  cut[#cut + 1] = "mkdir -p " .. name
  cut[#cut + 1] = start_one(name, 0, (of_first or "") .. " " .. words)
  cut[#cut + 1] = start_one(name, 1, words)
end
cut[#cut + 1] = "for i in $(seq 200); do ls */notes | wc -l | grep -q 3 && break; sleep 0.1; done"
cut[#cut + 1] = "sleep 1; date +%s.%N >cut"
cut[#cut + 1] = hosts.on(2) .. "ip link set cable2 down"
cut[#cut + 1] = wait "ends"
cut[#cut + 1] = "for i in $(seq 200); do grep -q 'restart 1' halves0.out && break; sleep 0.1; done"
cut[#cut + 1] = hosts.on(2) .. "ip link set cable2 up"
cut[#cut + 1] = wait "waits" .. wait "halves"
program.shell(table.concat(cut, "\n"))

test("a host that is cut off is missed", function()
  local first, second = expect_code("ends", 1)
  assert(first:find "redco%-lua: process [23] of 4 failed first: no sign of life", first)
  expect_has(second, "the store of the run at 10.77.0.1:4001 is lost")
  local took = read "ends.ended" - read "cut"
  assert(took < 10, took .. " s")
end)

test("when it is back the run goes on", function()
  local first = expect_code("waits", 0)
  assert(first:find "redco%-lua: process [23] of 4 failed first: no sign of life", first)
  expect_has(first, "redco-lua: restart 1 of 2, with processes 0 to 1 of 4 on this host\n")
  runs.expect_as_alone "waits"
end)

test("or without it", function()
  local first = expect_code("halves", 0)
  expect_has(first, "redco-lua: restart 1 of 1, with processes 0 to 1 of 2 on this host\n")
  runs.expect_as_alone "halves"
  expect_none_left()
end)

-- Runs, in the middle of which something happens.
local ended = {}
for i, each in ipairs {
  { "lost", "kill -KILL $lost0" },
  { "term", "kill -TERM $term1" },
  { "usr1", "kill -USR1 $usr10" },
  { "stopped", "kill -STOP $stopped1" },
  { "anew", "kill -KILL $anew1" },
  { "twin" },
} do
  local name, command = unpack(each)
  local words = ("--host0-address 10.77.0.1 --host0-port %d %s %s --pause=0.3"):format(5000 + i,
    name == "anew" and "--max-restarts 1" or "", runs.words(4, name, "death.lua"))
  ended[#ended + 1] = "mkdir " .. name
  ended[#ended + 1] = start(name, words)
  ended[#ended + 1] = ("until [ -e %s/notes ]; do sleep 0.1; done; sleep 0.5; %s"):format(name,
    command or "")
  if name == "anew" then ended[#ended + 1] = "wait $anew1; " .. start_one(name, 1, words) end
  if name == "twin" then
    ended[#ended + 1] = hosts.on(2) .. '"$REDCO_LUA" --n-processes 2 --process-id 1 --nproc 2 '
      .. words .. " >twin.out 2>&1; echo $? >twin.code"
  end
end
ended[#ended + 1] = "wait $stopped0; kill -KILL $stopped1"
ended[#ended + 1] = wait "stopped" .. wait "lost" .. wait "term" .. wait "usr1" .. wait "anew"
  .. wait "twin"
program.shell(table.concat(ended, "\n"))

test("a launcher that was killed is started anew", function()
  local first, second = expect_code("anew", 0)
  expect_has(first, "process 2 of 4 failed first: its host lost the connection and reconnected")
  expect_has(second, "restart 1 of 1, with processes 2 to 3 of 4 on this host")
  runs.expect_as_alone "anew"
end)

test("a second launcher with a number that is taken is refused", function()
  expect_equal(tonumber(read "twin.code"), 2)
  expect_has(read "twin.out", "redco-lua: the launcher of host 1 is process ",
    "each host needs a different number (--process-id, REDCO_PROCESS_ID)\n")
  expect_code("twin", 0)
  runs.expect_as_alone "twin"
end)

test("without the launcher of host 0 the others end, and say so", function()
  expect_equal(tonumber(read "lost0.code"), 137)
  expect_equal(tonumber(read "lost1.code"), 1)
  expect_has(read "lost1.out", "the store of the run at 10.77.0.1:5001 is lost",
    "the launcher of host 0 has ended")
end)

test("a launcher that is stopped counts as gone", function()
  expect_equal(tonumber(read "stopped0.code"), 1)
  expect_has(read "stopped0.out", "process 2 of 4 failed first: no sign of life of host 1 for 5 s")
end)

test("a signal to one launcher ends all hosts", function()
  expect_code("term", 143)
  expect_code("usr1", 138)
  expect_none_left()
end)

program.remove_folder()
testing.finish()
