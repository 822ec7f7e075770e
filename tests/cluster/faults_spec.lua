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

local function expect_code(expected, code, out, err)
  if code ~= expected then
    error(("expected exit code %d, got %d\n%s%s"):format(expected, code, out, err), 2)
  end
end

local wholes = {}
local function whole(n)
  if not wholes[n] then
    expect_code(0, train(n, "whole_" .. n, {}))
    wholes[n] = program.read(folder_of("whole_" .. n) .. "/result.safetensors")
  end
  return wholes[n]
end

--- Goes on, and comes to what an uninterrupted run does.
local function expect_goes_on(n, workdir)
  expect_code(0, train(n, workdir, {}))
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
      expect_code(1, code, out, err)
      program.expect_has(err, "cannot write", "step_8", reason)
      expect_goes_on(n, workdir)

      workdir, options.on_save_error = "went_on_" .. i, "continue"
      code, out, err = train(n, workdir, options, faults)
      expect_code(0, code, out, err)
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
  expect_code(1, code, out, err)
  program.expect_has(err, "cannot write", "No space left on device")
  expect_goes_on(1, "on")
end)

program.remove_folder()
testing.finish()
