-- A run that is asked to stop during an evaluation: it saves and ends there, without another step,
-- and a resumed run comes to the bits of an uninterrupted one.
local program = require "program"
local runs = require "runs"
local testing = require "testing"

local test, expect_equal = testing.test, testing.expect_equal
local script = assert(os.getenv "REDCO_SOURCE") .. "/tests/cluster/stopped_evaluation.lua"

local function train(case, workdir, options)
  local n, n_model_shards, zero = unpack(case)
  local words = { ("\"$REDCO_LUA\" --nproc %d '%s' --n_model_shards=%d --zero=%d"):format(n, script,
    n_model_shards, zero) }
  for _, all in ipairs { { workdir = workdir, per_device_batch_size = 4 * n_model_shards / n },
    case.options or {}, options or {} } do
    for name, value in pairs(all) do words[#words + 1] = ("--%s=%s"):format(name, value) end
  end
  return program.shell(table.concat(words, " ") .. " </dev/null")
end

-- {processes, model shards, zero, place of the signal, its call there, what is said, the calls that
-- may follow the signal}. The training steps of an epoch are 5; call 1 is that of the sanity check.
local often = { eval_every_k_steps = 2 }
local due = "; the run that resumes evaluates first"
local cases = {
  { 1, 1, 0, "loss", 3, "ended after step 5 by signal 15", due, {} },
  { 1, 1, 0, "token", 20, "ended after step 5 by signal 15", due, {} },
  { 1, 1, 0, "on_epoch", 2, "ended after step 10 by signal 15", due, {} },
  { 1, 1, 0, "on_eval", 1, "ended after step 2 by signal 15", due, {}, options = often },
  { 1, 1, 0, "loss", 6, "ended after step 4 by signal 15", due, {}, options = often },
  { 1, 1, 0, "loss", 7, "ended after step 7 by signal 15", due, {},
    options = { max_steps = 7 } },
  { 1, 1, 0, "loss", 1, "ended after step 0 by signal 15", "before it has trained a step",
    { pred = 1 } },
  { 2, 1, 3, "loss", 3, "ended after step 2 by signal 15", due, { loss = 4 }, options = often },
  { 2, 1, 1, "token", 30, "ended after step 5 by signal 15", due, { token = 16 } },
  { 2, 2, 0, "pred", 3, "ended after step 5 by signal 15", due, { token = 16, pred = 2 } },
  { 4, 2, 1, "on_eval", 2, "ended after step 10 by signal 15", due, { pred = 1, token = 16 } },
}

for i, case in ipairs(cases) do
  local n, n_model_shards, zero, place, number, said, left, may_follow = unpack(case)
  if not testing.is_chosen(i, 3) then goto continue end
  test(("in %s %d on %dx%d, zero = %d"):format(place, number, n / n_model_shards, n_model_shards,
    zero), function()
    local stopped, whole = "stopped_" .. i, "whole_" .. i
    program.shell(("mkdir %s %s"):format(stopped, whole))
    local code, out, err = train(case, stopped, { stop_place = place, stop_call = number })
    runs.expect_code(143, code, out, err)
    program.expect_has(err, said, left)
    local counts = {}
    local _, calls = program.shell(("cat %s/calls.txt 2>/dev/null"):format(stopped))
    for each in calls:gmatch "[^\n]+" do counts[each] = (counts[each] or 0) + 1 end
    for each, count in pairs(counts) do
      assert(count <= (may_follow[each] or 0), ("%d calls of %s after the signal"):format(count,
        each))
    end
    runs.expect_code(0, train(case, stopped))
    runs.expect_code(0, train(case, whole))
    local function result(folder)
      return program.read(("%s/%s/result.safetensors"):format(program.folder, folder))
    end
    assert(result(stopped) == result(whole), "the results differ")
    -- Each evaluation is logged once, or again with the same numbers if a hook after it was ended.
    local function evaluations(folder)
      local lines = {}
      for line in program.read(("%s/%s/metrics.jsonl"):format(program.folder, folder))
        :gmatch "[^\n]+" do
        local is_again = place:find "^on_" and line == lines[#lines]
        if line:find '"kind":"eval"' and not is_again then lines[#lines + 1] = line end
      end
      return table.concat(lines, "\n")
    end
    expect_equal(evaluations(stopped), evaluations(whole))
  end)
  ::continue::
end

program.remove_folder()
testing.finish()
