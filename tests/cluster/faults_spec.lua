-- Whole runs whose disk is full, failing or read-only, or of which one process is killed in the
-- midst of a save: the last checkpoint stays good, and the error says what went wrong.
local program = require "program"
local runs = require "runs"
local testing = require "testing"

local test, expect_equal = testing.test, testing.expect_equal
local faulty_files = assert(os.getenv "REDCO_FAULTY_FILES")
local name = "gpt-float32-zero0-dropout"  -- 10 steps

local function folder_of(workdir) return ("%s/%s/%s"):format(program.folder, workdir, name) end

--- Runs train.lua with these environment variables of faulty_files.h.
local function train(n, workdir, options, faults)
  local environment = {}
  if faults then
    environment.LD_PRELOAD = faulty_files
    environment.FAULTY_FILES = folder_of(workdir) .. "/ckpts"
    for key, value in pairs(faults) do environment["FAULTY_FILES_" .. key] = value end
  end
  local all = { workdir = program.folder .. "/" .. workdir, runs = name, save_every = 4,
    per_device_batch_size = 4 / n }
  for key, value in pairs(options) do all[key] = value end
  return runs.train(n, 1, all, environment)
end

local wholes = {}
local function whole(n)
  if not wholes[n] then
    runs.expect_code(0, train(n, "whole_" .. n, {}))
    wholes[n] = program.read(folder_of("whole_" .. n) .. "/result.safetensors")
  end
  return wholes[n]
end

--- Goes on, and comes to what an uninterrupted run does.
local function expect_goes_on(n, workdir)
  runs.expect_code(0, train(n, workdir, {}))
  local actual = program.read(folder_of(workdir) .. "/result.safetensors")
  assert(actual == whole(n), "the results differ")
  local _, left = program.shell(("ls -A %s/ckpts | grep '^[.]' || true"):format(
    folder_of(workdir)))
  expect_equal(left, "")
end

if os.getenv "REDCO_SANITIZE" == "1" then
  print "skipped: faults in whole runs: a sanitizer has to be loaded before all else"
else
  for i, case in ipairs {
    -- A process of four in the midst of its own file; the first in the midst of the rest.
    { 4, 2, "write", "step_8.saving/params" }, { 4, 0, "fsync", "step_8.saving/info.json" },
    { 1, 0, "rename", "step_8" }, testing.is_full and { 4, 0, "rename", "step_8" },
  } do
    if not case then break end
    local n, rank, kind, part = unpack(case)
    test(("%d processes, %d is killed before a %s of %s"):format(n, rank, kind, part), function()
      local workdir = "killed_" .. i
      local code, _, err = train(n, workdir, { save_in_background = i % 2 == 1 }, {
        ACT = "kill_before", CALL = "0", RANK = rank, KIND = kind, NAME = part,
      })
      assert(code ~= 0, err)
      expect_equal(program.read(folder_of(workdir) .. "/ckpts/last_ckpt.txt"), "last\n")
      expect_goes_on(n, workdir)
    end)
  end

  for i, case in ipairs {
    { 1, "EIO", "Input/output error" }, { 2, "EROFS", "Read-only file system" },
    { 2, "ENOSPC", "No space left on device" },
    testing.is_full and { 1, "ENOSPC", "No space left on device" },  -- else the full disk below
  } do
    if not case then break end
    local n, act, reason = unpack(case)
    test(("%s on the last of %d processes ends a run, or not"):format(act, n), function()
      local faults = { ACT = act, CALL = "0-", RANK = n - 1, NAME = "step_8.saving/" }
      local workdir, options = "failed_" .. i, { save_in_background = i % 2 == 1 }
      local code, out, err = train(n, workdir, options, faults)
      runs.expect_code(1, code, out, err)
      program.expect_has(err, "cannot write", "step_8", reason)
      expect_goes_on(n, workdir)

      workdir, options.on_save_error = "went_on_" .. i, "continue"
      code, out, err = train(n, workdir, options, faults)
      runs.expect_code(0, code, out, err)
      assert(program.read(folder_of(workdir) .. "/result.safetensors") == whole(n))
      program.expect_has(program.read(folder_of(workdir) .. "/log.txt"), "training goes on",
        reason)
    end)
  end
end

test("a full disk", function()
  -- A disk of its own, which is copied to where it is seen after the run.
  local run = [[
    mkdir -p full && unshare -m sh -c '
      mount -t tmpfs -o size=600k none full || exit 77
      "$REDCO_LUA" "$REDCO_SOURCE/tests/cluster/train.lua" --workdir=full --runs=%s \
        --save_every=2 --per_device_batch_size=4
      code=$?
      cp -r full on
      exit $code']]
  local code, out, err = program.shell(run:format(name))
  if code == 77 then return print("skipped: no small disk can be mounted: " .. err) end
  runs.expect_code(1, code, out, err)
  program.expect_has(err, "cannot write", "No space left on device")
  expect_goes_on(1, "on")
end)

test("a disk that is full for a while: on_save_error = \"continue\" covers the log too", function()
  program.write("while_full.lua", [[
local redco = require "redco"
local torch = redco.torch
local o = redco.options { workdir = "disk/run", full_at = 0, free_at = 7 }
local function fill() os.execute "head -c 10M /dev/zero >disk/ballast 2>/dev/null" end
local d = redco.Deployer { seed = 1, workdir = o.workdir, run_tensorboard = true }
local trainer = redco.Trainer {
  deployer = d, params = { w = torch.ones { 60, 60 } },
  collate_fn = function(batch) return { x = torch.ones { #batch, 60 } } end,
  loss_fn = function(_, _, params, batch) return batch.x:matmul(params.w):square():mean() end,
  optimizer = redco.optim.sgd { learning_rate = 1e-5 },
}
local examples = {}
for i = 1, 12 do examples[i] = i end
trainer:fit {
  train_examples = examples, eval_examples = { 1 }, per_device_batch_size = 1, n_epochs = 1,
  eval_every_k_steps = 1, save_ckpt_every_k_steps = 1, keep_last_k_ckpts = 2,
  save_in_background = false, on_save_error = "continue",
  on_step = function(event)
    if event.step == o.full_at then fill() end
    if event.step == o.free_at then os.remove "disk/ballast" end
  end,
}
print(trainer.step, select(2, d:load_last_ckpt()).step)]])
  local run = [[
    rm -rf disk shown; mkdir disk && unshare -m sh -c '
      mount -t tmpfs -o size=400k none disk || exit 77
      %s
      "$REDCO_LUA" while_full.lua --full-at=%d
      code=$?
      cp -r disk shown
      exit $code']]
  for _, case in ipairs {
    { 3, ":" }, { 0, "head -c 10M /dev/zero >disk/ballast 2>/dev/null" },  -- full from the start
  } do
    local full_at, before = unpack(case)
    local code, out, err = program.shell(run:format(before, full_at))
    if code == 77 then return print("skipped: no small disk can be mounted: " .. err) end
    runs.expect_code(0, code, out, err)
    expect_equal(out:match "([^\n]*)\n$", "12\t12")
    program.expect_has(out .. err, "No space left on device", "raining goes on, but metrics",
      "Metrics or results of the run were lost ")
    local _, n = (out .. err):gsub("raining goes on, but metrics", "")
    expect_equal(n, 1)
    -- Each line that is there is whole.
    local steps = 0
    for line in program.read(program.folder .. "/shown/run/metrics.jsonl"):gmatch "([^\n]*)\n" do
      assert(line:find '^{"step":%d+.*}$', line)
      steps = steps + 1
    end
    assert(steps >= 8 and steps <= 24, steps)
  end
end)

program.remove_folder()
testing.finish()
