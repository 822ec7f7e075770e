-- The end of runs whose functions do not return, and of what scripts have started.
local program = require "program"
local testing = require "testing"

local test, expect_equal = testing.test, testing.expect_equal
local shell, write = program.shell, program.write
local expect_has = program.expect_has

-- A training run whose collate_fn stays in `loop` from the fourth batch on.
local training = [[
local redco = require "redco"
local torch = redco.torch
local d = redco.Deployer { seed = 1, verbose = false, workdir = "work" }
local calls = { 0 }
local trainer = redco.Trainer {
  deployer = d, params = { w = torch.randn { 8, 8 } }, num_workers = tonumber(arg[1]),
  collate_fn = function(batch)
    calls[1] = calls[1] + 1
    if calls[1] > 3 then
      local file = io.open("looping", "w")
      file:close()
      %s
    end
    return { x = torch.ones { #batch, 8 } }
  end,
  loss_fn = function(_, state, params, batch) return batch.x:matmul(params.w):square():mean() end,
  optimizer = redco.optim.sgd { learning_rate = 0.1 },
}
local examples = {}
for i = 1, 3000 do examples[i] = i end
trainer:fit { train_examples = function() return examples end, per_device_batch_size = 1,
  n_epochs = 1 }
]]

-- Starts the script, sends the signal once it loops; returns the exit code, the seconds from the
-- signal to the end and what was said.
local function signalled(loop, words, signal)
  local path = write("training.lua", training:format(loop))
  local code, out, err = shell(([[
rm -rf work looping
"$REDCO_LUA" %s >run.out 2>&1 & pid=$!
for i in $(seq 200); do [ -e looping ] && break; sleep 0.05; done
[ -e looping ] || echo "never looped"
sleep 0.3; from=$(date +%%s%%N); kill -%s $pid
( sleep 25; kill -KILL $pid ) 2>/dev/null & guard=$!
wait $pid; echo $? $(( ($(date +%%s%%N) - from) / 1000000 ))
kill $guard]]):format(words:format(path), signal))
  local ended, took = out:match "(%d+) (%d+)"
  assert(ended, code .. out .. err)
  return tonumber(ended), tonumber(took) / 1000, program.read(program.folder .. "/run.out")
end

-- Neither returns. They sleep most of the time, because others need the cores.
local sleep = 'local ffi = require "ffi" ffi.cdef "int usleep(unsigned);" '
local loops = {
  compiled = sleep .. "while true do ffi.C.usleep(1000) end",
  plain = sleep .. "while true do os.time() ffi.C.usleep(1000) end",
}

-- {loop, num_workers}: of each two neighbours one gets SIGTERM and the other Ctrl-C.
local cases = { { "compiled", 0 }, { "plain", 0 }, { "plain", 2 }, { "compiled", 2 } }

test("SIGTERM ends a fit whose collate_fn does not return, and saves it", function()
  for i, case in ipairs(cases) do
    if testing.is_chosen(i, 2) then
      local code, took, out = signalled(loops[case[1]], "%s " .. case[2], "TERM")
      assert(code == 143, case[1] .. code .. out)
      assert(took < 10, took)
      expect_has(out, "by signal 15")
      local info = program.read(program.folder .. "/work/ckpts/last/info.json")
      assert(tonumber(info:match '"step":%s*(%d+)') >= 3, info)
    end
  end
end)

test("so does Ctrl-C, which saves nothing", function()
  for i, case in ipairs(cases) do
    if testing.is_chosen(i + 1, 2) then
      local code, took, out = signalled(loops[case[1]], "%s " .. case[2], "INT")
      assert(code == 130, case[1] .. code .. out)
      assert(took < 10, took)
    end
  end
end)

test("of several processes too, with the launcher's exit code", function()
  for signal, expected in pairs { TERM = 143, INT = 130 } do
    local code, took, out = signalled(loops.compiled, "--nproc 2 %s 1", signal)
    assert(code == expected, code .. out)
    assert(took < 12, took)
  end
end)

test("a launcher that is killed takes with it what its processes have started", function()
  -- By os.execute and io.popen, in the background, and in a session of its own.
  local path = write("starts.lua", [[
local name = arg[1]
os.execute("setsid sleep " .. name .. "1 & (setsid nohup sleep " .. name .. "2 >/dev/null &)")
local pipe = io.popen("sleep " .. name .. "3", "r")
os.execute("sleep " .. name .. "4")]])
  local mark = "88" .. tostring(os.time()):sub(-3)
  local code, out, err = shell(([[
count() { grep -lazs "^sleep" /proc/[0-9]*/cmdline | xargs -r grep -lazs "^%s" | wc -l; }
"$REDCO_LUA" --nproc 2 %s %s & launcher=$!
for i in $(seq 200); do [ $(count) -ge 8 ] && break; sleep 0.05; done
echo before $(count)
kill -KILL $launcher; wait $launcher; echo code $?
for i in $(seq 60); do [ $(count) = 0 ] && break; sleep 0.05; done
echo after $(count)]]):format(mark, path, mark))
  assert(code, err)
  expect_equal(out, "before 8\ncode 137\nafter 0\n")
end)

test("a launcher that ends well leaves what a script has put in the background", function()
  local path = write("leaves.lua", [[os.execute "setsid sleep 8877 & echo $! >left"]])
  local code, out, err = shell(([[
"$REDCO_LUA" --nproc 2 %s; sleep 0.3; kill -0 $(cat left) && echo alive; kill $(cat left)]]):format(
    path))
  assert(code == 0 and out == "alive\n", out .. err)
  shell "for p in /proc/[0-9]*; do grep -qazs 8877 $p/cmdline && kill ${p#/proc/}; done; true"
end)

program.remove_folder()
testing.finish()
