-- A work folder after kills and damage, and with two runs in it.
local program = require "program"
local testing = require "testing"

local test, expect_equal = testing.test, testing.expect_equal
local shell, expect_has = program.shell, program.expect_has

program.write("train.lua", [[
local redco = require "redco"
local torch = redco.torch
local o = redco.options { workdir = "run", max_steps = 6, wait_at = -1, kill_at = -1 }
local d = redco.Deployer { seed = 1, workdir = o.workdir }
local ckpt, info = d:load_last_ckpt()
print("resumes at " .. (info and info.step or "the start"))
local trainer = redco.Trainer {
  deployer = d, params = ckpt and ckpt.params or { w = torch.ones { 4, 4 } },
  opt_state = ckpt and ckpt.opt_state, last_ckpt_info = info,
  collate_fn = function(batch) return { x = torch.ones { #batch, 4 } } end,
  loss_fn = function(_, state, params, batch)
    if state.step == o.wait_at then
      io.open("waiting", "w"):close()
      while not io.open "go" do os.execute "sleep 0.1" end
    end
    if state.step == o.kill_at and not ckpt then os.execute "kill -9 $PPID" end
    return batch.x:matmul(params.w):square():mean()
  end,
  optimizer = redco.optim.sgd { learning_rate = 0.01 },
}
local examples = {}
for i = 1, 64 do examples[i] = i end
trainer:fit { train_examples = examples, per_device_batch_size = 1, global_batch_size = 2, n_epochs = 1,
  max_steps = o.max_steps, save_ckpt_every_k_steps = 2, save_in_background = false }
]])

-- The first run saves step_2, step_4 and step_6.
local function train(options)
  return shell('"$REDCO_LUA" ' .. (options or "") .. " train.lua")
end
local function start_anew()
  shell "rm -rf run && cp -r saved run"
end
local function expect_one_run()
  expect_equal(train(), 0)
  shell "mv run saved"
end
local function listed(folder)
  local _, out = shell("ls " .. folder)
  return (out:gsub("\n", " "))
end

test("a run saves its steps", expect_one_run)

test("without last_ckpt.txt, or with a wrong one, the newest checkpoint is found", function()
  start_anew()
  for _, break_it in ipairs { "rm run/ckpts/last_ckpt.txt",
    "printf '\\0\\377/..' > run/ckpts/last_ckpt.txt" } do
    shell(break_it)
    local code, out, err = train()
    expect_equal(code, 0)
    expect_has(out, "resumes at 6")
    expect_has(err, "last_ckpt.txt is missing or names no checkpoint", "step_6")
  end
end)

test("a damaged checkpoint is set aside, and the newest whole one is loaded", function()
  local damage = { "printf x | dd of=run/ckpts/step_6/params.safetensors bs=1 seek=90 conv=notrunc",
    "printf 9 | dd of=run/ckpts/step_6/info.json bs=1 seek=90 conv=notrunc",
    "rm run/ckpts/step_6/info.json" }
  for i, break_it in ipairs(damage) do
    start_anew()
    shell(break_it)
    local code, out, err = train(i == 1 and "--nproc 2 --max-restarts 1" or "")
    expect_equal(code, 0)
    expect_has(out, "resumes at 4")
    expect_has(err, "step_6 is damaged", "Resuming from step_4", "It is kept as")
    assert(not err:find("restart 1", 1, true), err)
    expect_equal(listed "run/ckpts", "last_ckpt.txt step_2 step_4 step_6 step_6.damaged ")
  end
end)

test("without any whole checkpoint the run ends, and changes nothing", function()
  start_anew()
  shell "for each in run/ckpts/step_*; do echo >> $each/info.json; done"
  local code, _, err = train()
  expect_equal(code, 1)
  expect_has(err, "there is no whole checkpoint in run/ckpts", "and 2 more", "Restore one")
  expect_equal(listed "run/ckpts", "last_ckpt.txt step_2 step_4 step_6 ")
end)

test("a second run in a work folder is refused at its start", function()
  shell "rm -rf run go waiting"
  local code, _, err = shell [[
    "$REDCO_LUA" train.lua --wait-at=3 > first 2>&1 & first=$!
    until [ -e waiting ]; do sleep 0.1; done
    cp run/config.toml before
    "$REDCO_LUA" --nproc 2 train.lua --max-steps=8; [ $? = 1 ] || echo "wrong code" >&2
    cmp before run/config.toml >&2
    grep -q "process $first on host $(hostname)" run/.lock || echo "wrong lock" >&2
    touch go; wait $first]]
  expect_equal(code, 0)
  expect_has(err, "the work folder run is in use by another run (process ")
  for _, wrong in ipairs { "wrong code", "differ", "wrong lock" } do
    assert(not err:find(wrong, 1, true), err)
  end
  expect_equal(listed "-A run", "ckpts config.toml log.txt metrics.jsonl ")
end)

test("a lock that is a link is refused, and what it leads to stays", function()
  for link, words in pairs { ["ln -s ../kept"] = "", ["ln -s ../missing"] = "--nproc 2",
    ["ln kept"] = "" } do
    shell("rm -rf run; mkdir run; echo precious > kept; " .. link .. " run/.lock")
    local code, _, err = train(words)
    expect_equal(code, 1)
    expect_has(err, "run/.lock is a link to another file: remove it")
    expect_equal(program.read(program.folder .. "/kept"), "precious\n")
  end
end)

test("pipes in place of a run's files are errors", function()
  for _, name in ipairs { "metrics.jsonl", "log.txt" } do
    shell("rm -rf run; mkdir run; mkfifo run/" .. name)
    local code, _, err = train ""
    expect_equal(code, 1)
    expect_has(err, "run/" .. name)
  end
end)

test("a killed run leaves no lock, and its temporary files go; those of a live process stay",
  function()
  shell "rm -rf run go waiting"
  local code = shell [[
    "$REDCO_LUA" train.lua --wait-at=3 > first 2>&1 & first=$!
    until [ -e waiting ]; do sleep 0.1; done
    kill -9 $first; wait $first; touch go run/.eval.json.1-0.redco run/ckpts/.x.1-0.redco
    mkdir run/ckpts/.step_9.saving; echo mine > run/.mine.tmp
    "$REDCO_LUA" -e 'local f = io.open("run/.live.json.7-0.redco", "w"); f:close()
      local ffi = require "ffi"
      ffi.cdef "int open(const char*, int); int fcntl(int, int, void*);"
      local lock = ffi.new("char[32]"); lock[0] = 1
      assert(ffi.C.fcntl(ffi.C.open("run/.live.json.7-0.redco", 2), 37, lock) == 0)
      io.open("locked", "w"):close(); while io.open "locked" do os.execute "sleep 0.1" end' &
    until [ -e locked ]; do sleep 0.1; done
    "$REDCO_LUA" train.lua; code=$?; rm locked; wait; exit $code]]
  expect_equal(code, 0)
  expect_equal(listed "-A run",
    ".live.json.7-0.redco .mine.tmp ckpts config.toml log.txt metrics.jsonl ")
  expect_equal(listed "-A run/ckpts", "last_ckpt.txt step_2 step_4 step_6 ")
end)

test("a run that is restarted has its own work folder", function()
  shell "rm -rf run go waiting"
  local code, out, err = shell '"$REDCO_LUA" --nproc 2 --max-restarts 1 train.lua --kill-at=5'
  expect_equal(code, 0)
  expect_has(out, "resumes at 4")
  expect_has(err, "restart 1 of 1")
end)

test("a mapped file that is shortened is an error, and nothing is written from it", function()
  local code, out = program.run({ "-e", [[
    local torch = require("redco").torch
    torch.save({ a = torch.ones { 1000, 1000 } }, "a")
    local t = torch.load "a"
    os.execute "truncate -s 5000 a"
    print(pcall(torch.save, t, "b"))
    print(io.open "b")
    print(pcall(function() return t.a:double():sum() end))]] }, "")
  expect_equal(code, 0)
  expect_has(out, "a: the file was shortened", "nil\tb: No such file")
end)

test("in a folder that was deleted the program says so", function()
  local code, _, err = shell 'mkdir gone && cd gone && rmdir ../gone && "$REDCO_LUA" -e "print(1)"'
  expect_equal(code, 2)
  expect_has(err, "redco-lua: the current folder no longer exists")
  code, _, err = shell [[
    mkdir gone && cd gone && rmdir ../gone && REDCO_WITHOUT=current_folder "$REDCO_LUA" -e ""]]
  assert(code ~= 0, "program/workarounds/current_folder.cpp is no longer needed")
  assert(not err:find("redco-lua: ", 1, true), err)
end)

program.remove_folder()
testing.finish()
