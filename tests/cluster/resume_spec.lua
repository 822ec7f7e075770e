-- Runs that were killed or asked to stop go on from their checkpoints to what an uninterrupted run
-- comes to: to the bit on the same layout, and to rounding on another.
local program = require "program"
local runs = require "runs"
local testing = require "testing"
local torch = require "redco.torch"

local test, expect_equal = testing.test, testing.expect_equal
local save_every = 3

local function train(n, n_model_shards, workdir, names, options)
  local all = {
    workdir = program.folder .. "/" .. workdir, runs = names,
    per_device_batch_size = 4 * n_model_shards / n, n_epochs = 2,
  }
  for name, value in pairs(options or {}) do all[name] = value end
  return runs.train(n, n_model_shards, all)
end

local function exists(path)
  local file = io.open(program.folder .. "/" .. path)
  if file then file:close() end
  return file ~= nil
end

--- Losses, an evaluation, predictions, parameters and optimizer states, all to the bit.
local function expect_same(actual, expected, name)
  actual = ("%s/%s/%s"):format(program.folder, actual, name)
  expected = ("%s/%s/%s"):format(program.folder, expected, name)
  assert(torch.equal(runs.losses(actual), runs.losses(expected)), "the losses differ")
  local file = "/result.safetensors"
  assert(program.read(actual .. file) == program.read(expected .. file), "the results differ")
end

-- 10 steps, 5 an epoch; killed in the second epoch, where no checkpoint is.
for i, case in ipairs {
  { 1, 1, "gpt-float16-zero0-dropout" }, { 1, 1, "gpt-float32-zero0-dropout" },
  { 2, 1, "layers-float32-zero0-dropout" }, { 1, 1, "llama-bfloat16-zero0" },
  { 2, 1, "gpt-float32-zero3-dropout" }, { 2, 1, "gpt-float32-zero0-dropout" },
  { 4, 2, "gpt-float32-zero2-dropout" }, { 2, 2, "gpt-float32-zero0-dropout" },
  { 4, 1, "gpt-float32-zero3-group2-dropout" },
  { 1, 1, "adapters-float32-zero0-dropout" }, { 2, 1, "adapters-float32-zero3-dropout" },
  { 2, 2, "adapters-float32-zero0-dropout" }, { 4, 2, "adapters-float32-zero2-dropout" },
} do
  local n, n_model_shards, name = unpack(case)
  if not testing.is_chosen(i, 2) then goto continue end
  test(("%s on %dx%d, killed"):format(name, n / n_model_shards, n_model_shards), function()
    local whole, killed = ("whole_%d_%d"):format(n, n_model_shards), ("killed_%d_%d"):format(n,
      n_model_shards)
    local code = train(n, n_model_shards, killed, name, {
      save_every = save_every, signal_at = 7, signal_rank = n - 1,
    })
    assert(code ~= 0 and not exists(("%s/%s/result.safetensors"):format(killed, name)))
    runs.expect_code(0, train(n, n_model_shards, killed, name,
      { save_every = save_every, whole = program.folder .. "/" .. whole }))
    expect_same(killed, whole, name)
    assert(not exists(("%s/%s/ckpts/.step_6.saving"):format(killed, name)))
  end)
  ::continue::
end

test("on other layouts", function()
  local function names_of(...)
    local names = {}
    for i, zero in ipairs { ... } do names[i] = ("gpt-float32-zero%d-dropout"):format(zero) end
    names[#names + 1] = "gpt-float64-zero3-dropout"
    names[#names + 1] = "adapters-float64-zero3-dropout"
    return names
  end
  runs.expect_code(0, train(1, 1, "one", "gpt-float32-zero0-dropout gpt-float64-zero0-dropout "
    .. "adapters-float64-zero0-dropout"))
  local function chosen(zeros, few) return names_of(unpack(testing.is_full and zeros or few)) end
  local all = table.concat(chosen({ 0, 1, 2, 3 }, { 1, 2 }), " ")
  runs.expect_code(0, train(4, 2, "saved", all, { save_every = save_every, max_steps = 7 }))
  -- `zero` says nothing where there is one copy of the model.
  for _, layout in ipairs {
    { 1, 1, chosen({ 0, 2 }, { 2 }) }, { 4, 1, chosen({ 0, 1, 2, 3 }, { 1 }) },
    { 4, 4, chosen({ 1, 3 }, {}) }, testing.is_full and { 4, 2, chosen({ 1, 2 }, {}) },
  } do
    if not layout then break end
    local n, n_model_shards, names = unpack(layout)
    local workdir = ("resumed_%d_%d"):format(n, n_model_shards)
    runs.expect_code(0, program.shell(("cp -r saved %s"):format(workdir)))
    runs.expect_code(0, train(n, n_model_shards, workdir, table.concat(names, " "),
      { save_every = save_every }))
    for _, name in ipairs(names) do
      local model, dtype = name:match "^(%w+)-(%w+)-"
      local expected = runs.losses(("%s/one/%s-%s-zero0-dropout"):format(program.folder, model,
        dtype))
      runs.expect_near(("%s, %s: losses"):format(workdir, name),
        runs.losses(("%s/%s/%s"):format(program.folder, workdir, name)), expected,
        dtype == "float64" and 1e-9 or 1e-5)
    end
  end
end)

test("between groups of zero and other layouts", function()
  for i, case in ipairs {
    { { 4, 1, "zero3-group2" }, { 2, 1, "zero1" } },
    { { 4, 1, "zero1-group2" }, { 4, 2, "zero3-group1" } },
    { { 2, 1, "zero3" }, { 4, 1, "zero2-group2" } },
  } do
    if not testing.is_chosen(i, 2) then goto continue end
    local from, to = unpack(case)
    local workdir = "groups_" .. i
    local function name_of(layout) return ("gpt-float64-%s-dropout"):format(layout[3]) end
    runs.expect_code(0, train(from[1], from[2], workdir, name_of(from),
      { save_every = save_every, max_steps = 7 }))
    runs.expect_code(0, program.shell(("mv %s/%s %s/%s"):format(workdir, name_of(from), workdir,
      name_of(to))))
    runs.expect_code(0, train(to[1], to[2], workdir, name_of(to), { save_every = save_every }))
    runs.expect_near(name_of(to) .. ": losses",
      runs.losses(("%s/%s/%s"):format(program.folder, workdir, name_of(to))),
      runs.losses(program.folder .. "/one/gpt-float64-zero0-dropout"), 1e-9)
    ::continue::
  end
end)

for _, case in ipairs { { "TERM", 143, 2 }, { "USR1", 138, 1 } } do
  local signal, code, n = unpack(case)
  test(("SIG%s on %d processes"):format(signal, n), function()
    local name = "gpt-float64-zero0-dropout"
    local whole, stopped = "whole_" .. n, "stopped_" .. n
    local actual, out, err = train(n, 1, stopped, name, {
      save_every = 100, signal_at = 2, signal = signal,
    })
    runs.expect_code(code, actual, out, err)
    program.expect_has(err, "its checkpoint is ")
    expect_equal(program.read(("%s/%s/%s/ckpts/last_ckpt.txt"):format(program.folder, stopped,
      name)), "last\n")
    assert(not exists(("%s/%s/result.safetensors"):format(stopped, name)))
    runs.expect_code(0, train(n, 1, stopped, name,
      { save_every = 100, whole = program.folder .. "/" .. whole }))
    expect_same(stopped, whole, name)
  end)
end

program.remove_folder()
testing.finish()
