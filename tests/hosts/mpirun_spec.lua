-- Open MPI's mpirun starts the processes, on one host and on two.
local hosts = require "hosts"
local program = require "program"
local runs = require "runs"
local testing = require "testing"

hosts.need "mpirun"

-- Where mpirun runs, and how it reaches the other host.
local mpirun = hosts.on(1) .. [[mpirun --allow-run-as-root --oversubscribe \
  --mca plm_rsh_agent "$REDCO_SOURCE/tests/hosts/on.sh" ]]

local function expect_trained(name, n, words)
  local code, out, err = program.shell(("%s %s %s"):format(mpirun, words, runs.words(n, name)))
  assert(code == 0, out .. err)
  runs.expect_as_alone(name)
  return err
end

testing.test("two processes on one host", function()
  expect_trained("one", 2, '-np 2 "$REDCO_LUA"')
end)

testing.test("one on each of two hosts", function()
  expect_trained("two", 2, '-np 2 --host host1,host2 "$REDCO_LUA"')
end)

testing.test("a launcher on each of two hosts", function()
  local err = expect_trained("launchers", 4, '-np 2 --host host1,host2 "$REDCO_LUA" --nproc 2')
  program.expect_has(err, "host 1 of 2, as Open MPI's variables say, runs processes 2 to 3 of 4",
    "which meet at 10.77.0.1:")
end)

testing.test("where mpirun runs beside process 0 its address must be told", function()
  local rankfile = program.write("ranks", "rank 0=host2 slot=0\nrank 1=host1 slot=0\n")
  local words = ('-np 2 --host host1,host2 --rankfile %s "$REDCO_LUA" '):format(rankfile)
  local code, _, err = program.shell(mpirun .. words .. runs.words(2, "lost"))
  assert(code ~= 0)
  program.expect_has(err, "Open MPI's variables do not tell where process 0 is", "--host0-address")
  expect_trained("told", 2, words .. "--host0-address 10.77.0.2")
end)

program.remove_folder()
testing.finish()
