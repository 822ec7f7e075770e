-- redco-lua --nproc: how workers start, show themselves, fail and end.
local program = require "program"
local testing = require "testing"

local test, expect_equal = testing.test, testing.expect_equal
local run, shell, write = program.run, program.shell, program.write
local expect_has, seconds = program.expect_has, program.seconds

local function expect_code(code, actual, out, err)
  if actual ~= code then
    error(("expected exit code %d, got %d\n%s%s"):format(code, actual, out, err), 2)
  end
end

local function sorted_lines(text)
  local lines = {}
  for line in text:gmatch "[^\n]*\n" do lines[#lines + 1] = line end
  table.sort(lines)
  return table.concat(lines)
end

-- The start of every script here: `d` knows the process.
local head = "local d = require('redco').Deployer { seed = 1, verbose = false }\n"

test("weights that a folder lacks are named once, and not those of a new model", function()
  local path = write("new_weights.lua", [[
local redco = require "redco"
redco.Deployer { seed = 1, verbose = false }
local new = redco.models.from_config({ model_type = "bert", vocab_size = 9, hidden_size = 4,
  intermediate_size = 4, num_hidden_layers = 1, num_attention_heads = 2,
  max_position_embeddings = 8 }, { task = "features" })
new.save_pretrained((...))
redco.models.from_pretrained((...))
redco.models.from_pretrained((...), { task = "token_classification" })]])
  local code, out, err = run { "--nproc", "2", path, program.folder .. "/headless" }
  expect_code(0, code, out, err)
  local _, n = err:gsub("newly initialized", "")
  expect_equal(n, 1)
  expect_has(err, "headless", "BertForTokenClassification", "classifier.bias, classifier.weight")
end)

test("each worker knows its place, gets the arguments, and has its lines marked", function()
  local path = write("places.lua", [[
local redco = require "redco"
local d = redco.Deployer { seed = 1, n_model_shards = 2, verbose = false }
print(d.process_id, d.n_processes, d.mesh.dp, d.mesh.mp, ...)
io.stderr:write("to stderr ", d.process_id)
local local_size, global = d:get_local_global_micro_batch_size { per_device_batch_size = 3 }
print(local_size, global)]])
  local code, out, err = run { "--nproc", "4", path, "a", "--nproc", "7" }
  expect_code(0, code, out, err)
  expect_equal(sorted_lines(out), [[
[0] 0	4	2	2	a	--nproc	7
[0] 3	6
[1] 1	4	2	2	a	--nproc	7
[1] 3	6
[2] 2	4	2	2	a	--nproc	7
[2] 3	6
[3] 3	4	2	2	a	--nproc	7
[3] 3	6
]])
  expect_equal(sorted_lines(err),
    "[0] to stderr 0\n[1] to stderr 1\n[2] to stderr 2\n[3] to stderr 3\n")
end)

-- The cores that this process may use, as a list of numbers.
local cores_script = [[
for line in io.lines "/proc/self/status" do
  local list = line:match "^Cpus_allowed_list:%s*(%S+)"
  for first, last in (list or ""):gmatch "(%d+)%-?(%d*)" do
    for core = tonumber(first), tonumber(last) or tonumber(first) do io.write(core, " ") end
  end
end
]]

test("workers divide the cores, if there are enough, unless REDCO_CORES is all", function()
  local path = write("cores.lua", cores_script)
  local function cores_of(prefix, n)
    local code, out, err = shell(("%s \"$REDCO_LUA\" --nproc %d %s"):format(prefix, n, path))
    expect_code(0, code, out, err)
    local parts = {}
    for rank, list in out:gmatch "%[(%d)%] ([%d ]*)\n" do parts[tonumber(rank) + 1] = list end
    expect_equal(#parts, n)
    return parts
  end
  local _, all = run { path }
  local own = {}
  for core in all:gmatch "%d+" do own[#own + 1] = core end
  local n = math.min(#own, 4)
  local seen = {}
  for _, list in ipairs(cores_of("", n)) do
    for core in list:gmatch "%d+" do seen[#seen + 1] = core end
  end
  table.sort(seen)
  table.sort(own)
  expect_equal(table.concat(seen, " "), table.concat(own, " "))
  for _, list in ipairs(cores_of("REDCO_CORES=all", n)) do expect_equal(list, all) end
  for _, list in ipairs(cores_of("REDCO_CORES=" .. own[1], 2)) do
    expect_equal(list, own[1] .. " ")
  end
end)

test("REDCO_CORES without cores is refused", function()
  for value, text in pairs { ["1-x"] = "expected numbers of cores such as 0,1, or all; got '1-x'",
    ["1023"] = "'1023' has no core that this process may use" } do
    local code, out, err = shell(("REDCO_CORES=%s \"$REDCO_LUA\" -e ''"):format(value))
    expect_code(2, code, out, err)
    expect_has(err, "redco-lua: REDCO_CORES: " .. text)
  end
end)

test("lines come out whole, however they are written; of a redrawn line the last state", function()
  local path = write("lines.lua", [[
io.stdout:setvbuf "no"
for i = 1, 300 do
  io.write("a", "b", i) io.write("c\n")
end
io.write("10%\r20%\r") io.write("30%\r\n", "\n", ("x"):rep(200000), "\nlast")]])
  local code, out, err = run { "--nproc", "2", path }
  expect_code(0, code, out, err)
  local counts = {}
  for line in out:gmatch "[^\n]*\n" do
    local rank, rest = line:match "^%[([01])%] (.*)\n$"
    assert(rank, line)
    local i = (counts[rank] or 0) + 1
    counts[rank] = i
    local expected = i <= 300 and "ab" .. i .. "c"
      or ({ "30%", "", ("x"):rep(200000), "last" })[i - 300]
    expect_equal(rest, expected)
  end
  expect_equal(counts["0"], 304)
  expect_equal(counts["1"], 304)
end)

test("workers have the open files of a process that runs alone", function()
  local path = write("descriptors.lua", [[
local n = 0
-- This process closes its copy of the shell's end of the pipe meanwhile.
for name in io.popen("sleep 0.3; ls /proc/$PPID/fd"):lines() do
  n = n + (tonumber(name) > 2 and 1 or 0)
end
print(n)]])
  -- One that the shell opened is among them.
  local code, out, err = shell(([[
exec 9<%s
"$REDCO_LUA" /dev/fd/9
"$REDCO_LUA" --nproc 3 /dev/fd/9]]):format(path))
  expect_code(0, code, out, err)
  local alone = out:match "^%d+"
  expect_equal(sorted_lines(out), (("N\n[0] N\n[1] N\n[2] N\n"):gsub("N", alone)))
end)

test("no process is left if the other machines never come", function()
  for signal, expected in pairs { INT = 130, TERM = 143, KILL = 137 } do
    local path = write("alone.lua", "")
    local _, out = shell(([[
"$REDCO_LUA" --n-processes 2 --process-id 0 --host0-address 127.0.0.1 --host0-port %d --nproc 2 %s &
launcher=$!
for i in $(seq 100); do
  started=$(cat /proc/$launcher/task/$launcher/children)
  [ -n "$started" ] && break
  sleep 0.05
done
sleep 0.2
kill -%s $launcher; wait $launcher; echo "code $?"
sleep 0.3
for each in $started; do grep -s '^State:' /proc/$each/status | grep -v Z | sed 's/^/left /'; done
true]]):format(21000 + os.time() % 1000, path, signal))
    expect_equal(out, "code " .. expected .. "\n")
  end
end)

test("one worker is this process itself", function()
  local path = write("one.lua", head .. "print(d.n_processes, d.mesh.dp, os.getenv 'RANK')")
  local code, out, err = run { "--nproc", "1", path }
  expect_code(0, code, out, err)
  expect_equal(out, "1\t1\tnil\n")
  expect_equal(err:gsub("[^\n]*still waiting [^\n]*\n", ""), "")
end)

test("wrong values of --nproc, and what several cannot do, are wrong usage", function()
  local path = write("nothing.lua", "")
  for _, n in ipairs { "0", "-1", "x", "1.5", "", "5000" } do
    local code, _, err = run { "--nproc", n, path }
    expect_equal(code, 2)
    expect_has(err, "--nproc")
  end
  local code, out, err = run { "--nproc", "2", "-" }
  expect_code(2, code, out, err)
  expect_has(err, "--nproc needs a FILE")
  code, out, err = run { "--nproc", "2", "-e", "print 'piece'" }
  expect_code(0, code, out, err)
  expect_equal(sorted_lines(out), "[0] piece\n[1] piece\n")
  code, out, err = run { "--nproc", "2", "nowhere.lua" }
  expect_code(2, code, out, err)
  code, out, err = run { "--nproc", "2", write("shards.lua",
    "require('redco').Deployer { seed = 1, n_model_shards = 3 }") }
  expect_code(2, code, out, err)
  expect_has(err, "n_model_shards = 3 must divide the number of processes, 2")
  code, out, err = run { "--nproc", "2", write("group.lua", [[
local redco = require "redco"
for _, group in ipairs { 3, 0, "hosts" } do
  io.stderr:write(tostring(select(2, pcall(redco.Deployer, { seed = 1, zero = 1, zero_group = group }))))
end
local mesh = redco.Deployer { seed = 1, zero = 3, zero_group = "host", verbose = false }.mesh
print(mesh.dp, mesh.mp, mesh.dp_replicate)]]) }
  expect_code(0, code, out, err)
  expect_has(err, "zero_group = 3 must divide the number of data-parallel processes, 2",
    'zero_group: expected a number of processes or "host", got number 0',
    'zero_group: expected a number of processes or "host", got "hosts"')
  expect_equal(sorted_lines(out), "[0] 2\t1\t1\n[1] 2\t1\t1\n")
end)

test("workers share the cores, unless they are told otherwise", function()
  local path = write("threads.lua",
    "print(os.getenv 'OMP_NUM_THREADS', require('redco').torch.get_num_threads())")
  local _, out = shell(("unset OMP_NUM_THREADS; \"$REDCO_LUA\" --nproc 2 %s"):format(path))
  local cores = io.popen("nproc"):read "*n"
  local share = math.max(1, math.floor(cores / 2))
  expect_equal(sorted_lines(out), ("[0] %d\t%d\n[1] %d\t%d\n"):format(share, share, share, share))
  -- LibTorch's number of threads is limited by the cores.
  _, out = shell(("export OMP_NUM_THREADS=3; \"$REDCO_LUA\" %s; \"$REDCO_LUA\" --nproc 2 %s")
    :format(path, path))
  local alone, both = out:match "^(3\t%d\n)(.*)$"
  expect_equal(sorted_lines(both), ("[0] %s[1] %s"):format(alone, alone))
end)

test("process 0 alone writes the log", function()
  local path = write("logs.lua", ([[
local d = require("redco").Deployer { seed = 1, workdir = %q }
d:log_info "a line"
d:log_metrics({ loss = 1 }, 1)]]):format(program.folder .. "/log"))
  local code, out, err = run { "--nproc", "3", path }
  expect_code(0, code, out, err)
  local _, n = err:gsub("a line", "")
  expect_equal(n, 1)
  expect_has(err, "[0] [")
  _, n = program.read(program.folder .. "/log/log.txt"):gsub("a line", "")
  expect_equal(n, 1)
  expect_equal(program.read(program.folder .. "/log/metrics.jsonl"), '{"step":1,"loss":1.0}\n')
end)

-- The others must be gone, and the error of the first the last thing shown.
local function expect_failure(n, script, expected_code, ...)
  local path = write("fails.lua", script)
  local from = seconds()
  local code, out, err = run { "--nproc", tostring(n), path }
  local took = seconds() - from
  expect_code(expected_code, code, out, err)
  assert(took < 50, took .. " s")  -- a worker that nobody ends sleeps for longer
  local last = err:match "\n(redco%-lua: process .*)$" or err:match "^(redco%-lua: process .*)$"
  assert(last, err)
  expect_has(last, ...)
  return out, err, path
end

test("an error in one of three ends all, and is shown last with its traceback", function()
  local _, err, path = expect_failure(3, head .. [[
local function loss_fn() error "out of tea" end
if d.process_id == 1 then loss_fn() end
require("redco").Deployer { seed = 2 }]], 1,
    "process 1 of 3 failed first: ", ":2: out of tea", "stack traceback", "in function 'loss_fn'")
  expect_has(err, "[0] redco-lua: " .. path .. ":4: connecting the processes ended, because " ..
    "process 1 failed: " .. path .. ":2: out of tea")
  expect_has(err, "[2] redco-lua: ")
end)

test("an error before the processes have met, while the others wait", function()
  expect_failure(2, "if os.getenv 'RANK' == '0' then error 'early' end\n" .. head, 1,
    "process 0 of 2 failed first: ", ":1: early")
end)

test("the exit code is that of the first failure", function()
  expect_failure(3, head .. "if d.process_id == 2 then os.exit(7) end os.execute 'sleep 60'", 7,
    "process 2 of 3 failed first: ended with exit code 7")
  expect_failure(2, head .. [[
if d.process_id == 0 then os.execute "kill -ABRT $PPID" end
require("redco").Deployer { seed = 2 }]], 134,
    "process 0 of 2 failed first: was ended by signal 6")
  expect_failure(2, head .. [[
if d.process_id == 0 then require("redco").Deployer { seed = 1, n_model_shards = 0 } end
require("redco").Deployer { seed = 2 }]], 2, "process 0 of 2 failed first: ", "n_model_shards = 0")
end)

test("a worker that ignores SIGTERM is killed", function()
  expect_failure(2, head .. [[
local ffi = require "ffi"
ffi.cdef "void (*signal(int, void (*)(int)))(int);"
ffi.C.signal(15, ffi.cast("void (*)(int)", 1))
if d.process_id == 1 then error "first" end
os.execute "sleep 60" os.execute "sleep 60"]], 1, "process 1 of 2 failed first: ", ":5: first")
end)

test("a worker that is killed or stopped ends the others before the time limit", function()
  for signal, expected in pairs {
    KILL = "process 1 of 3 failed first: was ended by signal 9",
    STOP = "process 1 of 3 failed first: no sign of life for 5 s",
  } do
    local path = write("stops.lua", head .. ([[
if d.process_id == 1 then os.execute "kill -%s $PPID" end
require("redco").Deployer { seed = 2 }]]):format(signal))
    local from = seconds()
    local code, out, err = run { "--nproc", "3", path }
    local took = seconds() - from
    expect_code(signal == "KILL" and 137 or 1, code, out, err)
    assert(took < 50, took .. " s")
    expect_has(err, expected, "[0] redco-lua: " .. path .. ":3: ")
  end
end)

-- Starts three workers that wait, runs the shell command with their pids and the launcher's in
-- $workers and $launcher, and tells the launcher's exit code and how many workers are left.
local function with_running(script, command)
  local path = write("waits.lua", head .. "print 'started' io.flush()\n" .. script)
  local _, out, err = shell(([[
set -m
"$REDCO_LUA" --nproc 3 %s >run.out 2>run.err </dev/null &
launcher=$!
for i in $(seq 200); do [ "$(grep -c started run.out)" = 3 ] && break; sleep 0.05; done
workers=$(cat /proc/$launcher/task/$launcher/children)
%s
( sleep 20; kill -KILL $launcher ) 2>/dev/null &
wait $launcher
echo "code $?"
kill %%2 2>/dev/null
# An orphan that has ended may wait for its new parent as a zombie. Ending takes a while on a busy
# machine.
left() {
  for each in $started; do grep -s '^State:' /proc/$each/status | grep -v Z | sed 's/^/left /'; done
}
for i in $(seq 30); do [ -z "$(left)" ] && break; sleep 0.1; done
left]]):format(path, command))
  local code = out:match "code (%d+)"
  assert(code, out .. err)
  local _, left = out:gsub("left", "")
  return tonumber(code), left, program.read(program.folder .. "/run.err")
end

test("Ctrl-C ends all with 130, SIGTERM with 143, and leaves none", function()
  for i, signal in ipairs { "INT", "TERM" } do
    local expected = ({ INT = 130, TERM = 143 })[signal]
    for k, script in ipairs {
      "while true do require('redco.torch').ones { 2 } end",
      "if d.process_id == 0 then require('redco').Deployer { seed = 2 } end\n" ..
        "while true do require('redco.torch').ones { 2 } end",
    } do
      if not testing.is_chosen(i + k - 1, 2) then goto continue end
      local from = seconds()
      local code, left, err = with_running(script, "kill -" .. signal .. " $launcher")
      assert(code == expected, ("%s: exit code %d\n%s"):format(signal, code, err))
      expect_equal(left, 0)
      assert(seconds() - from < 8, seconds() - from)
      assert(not err:find "failed first", err)
      ::continue::
    end
  end
end)

test("closed standard files are as /dev/null", function()
  local path = write("closed.lua", head .. [[
io.stderr:write "to stderr\n"
print(d.n_processes, io.read())]])
  for _, n in ipairs { 1, 2 } do
    for _, closed in ipairs { "<&-", ">&-", "2>&-", "<&- >&- 2>&-" } do
      local code, out, err = shell(("\"$REDCO_LUA\" --nproc %d %s %s")
        :format(n, path, closed))
      expect_code(0, code, out, err)
      local _, lines = out:gsub(n .. "\tnil\n", "")
      expect_equal(lines, closed:find("^>", 1) and 0 or closed:find " >" and 0 or n)
    end
  end
end)

test("output that is lost makes a run fail, which says so", function()
  local path = write("prints.lua", [[
print(1)
if arg[1] then os.exit(tonumber(arg[1])) end]])
  for _, case in ipairs { { "%s", 1 }, { "%s 0", 1 }, { "%s 3", 3 }, { "--nproc 2 %s", 1 } } do
    local words, expected = unpack(case)
    local code, out, err = shell(("\"$REDCO_LUA\" %s >/dev/full"):format(
      words:format(path)))
    expect_code(expected, code, out, err)
    assert(expected ~= 1 or err:find "output is lost: standard output could not be written", err)
  end
end)

test("a run ends well though its guardian was killed", function()
  local path = write("guarded.lua", "os.execute 'touch started; sleep 1' print 'done'")
  local code, out, err = shell(([[
rm -f started
"$REDCO_LUA" --nproc 2 %s & launcher=$!
for i in $(seq 200); do [ -e started ] && break; sleep 0.05; done
for each in $(cat /proc/$launcher/task/$launcher/children); do
  [ "$(cat /proc/$each/comm)" = redco-guardian ] && kill -KILL $each && echo killed
done
wait $launcher]]):format(path))
  expect_code(0, code, out, err)
  expect_equal(sorted_lines(out), "[0] done\n[1] done\nkilled\n")
end)

test("too few files may be open: the error says so", function()
  for _, limit in ipairs { 6, 10, 12, 14, 16, 20, 23, 24 } do
    local code, out, err = shell(([[
ulimit -n %d; "$REDCO_LUA" --nproc 2 -e "print(1)"]]):format(limit))
    if code ~= 0 then
      assert(not err:find("Success", 1, true) and not err:find("still waiting", 1, true), err)
      if limit > 14 then expect_has(err, "(ulimit -n), and 2 processes need at least 24") end
    else
      expect_equal(sorted_lines(out), "[0] 1\n[1] 1\n")
    end
  end
end)

test("no worker outlives a launcher that is killed", function()
  local code, left, err = with_running("os.execute 'sleep 30'", "kill -KILL $launcher")
  assert(code == 137, err)
  expect_equal(left, 0)
end)

test("several Deployers, each with a mesh of its own", function()
  local path = write("several.lua", [[
local redco = require "redco"
for i = 1, 6 do
  local d = redco.Deployer { seed = i, n_model_shards = i % 2 + 1, verbose = false }
  assert(d.mesh.mp == i % 2 + 1 and d.n_processes == 2)
  if i % 3 == 0 then collectgarbage() end
end
print "fine"]])
  local code, out, err = run { "--nproc", "2", path }
  expect_code(0, code, out, err)
  expect_equal(sorted_lines(out), "[0] fine\n[1] fine\n")
end)

test("processes that are told where process 0 is find each other", function()
  local path = write("told.lua", [[
local d = require("redco").Deployer { seed = 1, verbose = false, n_processes = 2,
  process_id = tonumber(arg[1]), host0_address = "127.0.0.1", host0_port = tonumber(arg[2]),
  collective_timeout = tonumber(arg[3]) }
print(d.process_id, d.mesh.dp)]])
  local port = 20000 + tonumber(tostring(os.time()):sub(-4))
  local code, out, err = shell(([[
"$REDCO_LUA" %s 0 %d 20 & "$REDCO_LUA" %s 1 %d 20; wait]]):format(path, port, path, port))
  expect_code(0, code, out, err)
  expect_equal(sorted_lines(out), "0\t2\n1\t2\n")
  -- Alone, and at a port that is taken.
  code, out, err = shell(([[
"$REDCO_LUA" %s 0 %d 4 2>alone.err & first=$!
sleep 1.5
"$REDCO_LUA" %s 0 %d 4; echo $?; wait $first; echo $?]]):format(path, port + 1, path, port + 1))
  assert(code)
  expect_equal(out, "1\n1\n")
  expect_has(err, path .. ":1: ", "cannot open the store of the run at 127.0.0.1:" .. port + 1)
  expect_has(program.read(program.folder .. "/alone.err"), "process 1 of 2 did not come within 4 s")
end)

test("the store stays while another process than its host still works", function()
  local path = write("works_on.lua", [[
local redco = require "redco"
local d = redco.Deployer { seed = 1, verbose = false, n_processes = 2,
  process_id = tonumber(arg[1]), host0_address = "127.0.0.1", host0_port = tonumber(arg[2]) }
local x = redco.shard(redco.torch.ones { 4, 2 }, { dp = 0 })
if d.process_id == 1 then
  require("ffi").cdef "int poll(void *, unsigned long, int);"
  require("ffi").C.poll(nil, 0, 7000)  -- longer than the silence after which a process is gone
  x:full()
end]])
  -- Below the ports that systems give to connections, of which any may be taken.
  local port = 20000 + tonumber(tostring(os.time()):sub(-4))
  local code, out, err = shell(([[
"$REDCO_LUA" %s 0 %d & "$REDCO_LUA" %s 1 %d; echo $?; wait]]):format(path, port, path, port))
  expect_code(0, code, out, err)
  expect_equal(out, "1\n")
  expect_has(err, "because process 0 has ended its script without it")
end)

test("torchrun's variables, and the file in which torchrun looks for the error", function()
  local path = write("fails_for_torchrun.lua", "local function f() error 'for torchrun' end\nf()")
  local code, out, err = shell(
    ("TORCHELASTIC_ERROR_FILE=report.json \"$REDCO_LUA\" %s"):format(path))
  expect_code(1, code, out, err)
  local report = program.read(program.folder .. "/report.json")
  expect_has(report, '{"message":{"message":"' .. path .. ':1: for torchrun"', '"extraInfo":{',
    '"py_callstack":"' .. path .. [[:1: for torchrun\nstack traceback:]], '"timestamp":"')
  local _
  code, _, err = shell(("WORLD_SIZE=2 \"$REDCO_LUA\" %s"):format(write("asks.lua", head)))
  expect_equal(code, 2)
  expect_has(err, "RANK is not set")
  code, _, err = shell(("RANK=0 WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=1 " ..
    "\"$REDCO_LUA\" --nproc 2 %s"):format(path))
  expect_equal(code, 2)
  expect_has(err, "already among several")
end)

program.remove_folder()
testing.finish()
