-- Two hosts that only know an address of the first.
local hosts = require "hosts"
local program = require "program"
local testing = require "testing"
local training = require "training"

local test, expect_has = testing.test, program.expect_has

-- Runs the words of redco-lua on both hosts at once, two processes on each, and the command beside
-- them. Returns the exit codes and what came out of each.
local function run(words, command)
  local lines = {}
  for i = 0, 1 do
    lines[#lines + 1] = ([[
%s"$REDCO_LUA" --n-processes 2 --process-id %d --nproc 2 %s >%d.out 2>&1 &
pid%d=$!]]):format(hosts.on(i + 1), i, words, i, i)
  end
  lines[#lines + 1] = (command or "") .. "\nwait $pid0; echo $?; wait $pid1; echo $?"
  local _, out, err = program.shell(table.concat(lines, "\n"))
  local first, second = out:match "(%d+)\n(%d+)\n$"
  assert(second, out .. err)
  return tonumber(first), tonumber(second), program.read(program.folder .. "/0.out"),
    program.read(program.folder .. "/1.out")
end

local addresses = { ipv4 = "10.77.0.1", name = "host1" }
if os.execute(hosts.on(1) .. "ip -6 address | grep -q fd77") == 0 then
  addresses.ipv6 = "fd77::1"
end
for name, address in pairs(addresses) do
  test("two processes on each of two hosts train: " .. name, function()
    local a, b, first, second = run(("--host0-address %s %s"):format(address,
      training.words(4, name)))
    assert(a == 0 and b == 0, first .. second)
    expect_has(second, "host 1 of 2, as REDCO_N_PROCESSES and REDCO_PROCESS_ID say, runs " ..
      "processes 2 to 3 of 4, which meet at " .. address .. ":11111")
    training.expect_done(name)
  end)
end

program.remove_folder()
testing.finish()
