-- One training script on every layout: the losses, the parameters, the evaluation and the
-- predictions are those of one process. On four processes every second of the runs that two
-- processes have made too.
local program = require "program"
local runs = require "runs"
local testing = require "testing"
local torch = require "redco.torch"
local tree = require "redco.tree"

local test = testing.test
local is_full = testing.is_full
local micro_batch_size = 4

-- The last step of an epoch has 5 examples instead of 8.
local n_epochs, n_examples, n_steps = 2, 13, 4
if is_full then n_epochs, n_examples, n_steps = 4, 37, 20 end

--- Trains in `n` processes; returns the folder of what came out.
local function train(n, n_model_shards, names)
  local n_dp = n / n_model_shards
  local workdir = ("%s/%dx%d"):format(program.folder, n_dp, n_model_shards)
  local code, out, err = runs.train(n, n_model_shards, {
    workdir = workdir, per_device_batch_size = micro_batch_size / n_dp,
    runs = table.concat(names, " "), n_epochs = n_epochs, n_examples = n_examples,
  })
  if code ~= 0 then error(("exit code %d\n%s%s"):format(code, out, err), 2) end
  return workdir
end

local all = { "gpt-float64-zero0", "llama-float64-zero0", "t5-float64-zero0", "conv-float64-zero0",
  "gpt-float32-zero0", "gpt-bfloat16-zero0", "gpt-float16-zero0", "gpt-float64-zero0-dropout",
  "llama-float64-zero0-mqa", "conv-bfloat16-zero0", "conv-float16-zero0",
  "layers-float64-zero0-dropout", "conv-autocast:bfloat16-zero0", "conv-autocast:float16-zero0",
  "gpt-autocast:bfloat16-zero0-dropout" }
local shared = { "gpt-float64-zero1", "gpt-bfloat16-zero1-offload", "gpt-float64-zero2",
  "gpt-float64-zero3-dropout",
  "gpt-float64-zero3-recompute-dropout", "gpt-float64-zero3-selective-dropout",
  "llama-float64-zero0-selective-mqa", "llama-float64-zero3", "t5-float64-zero3",
  "conv-float64-zero3", "gpt-bfloat16-zero3",
  "gpt-float16-zero3", "conv-autocast:bfloat16-zero3",
  "gpt-autocast:bfloat16-zero3-recompute-dropout" }
local sequence = { "llama-float64-zero0-sequence-selective", "gpt-float64-zero0-sequence",
  "gpt-float64-zero0-sequence-dropout",
  "gpt-float64-zero0-sequence-recompute-dropout" }
-- Cases of other models; families.lua trains more of them. All of them in a full run.
local more_shared = is_full and { "llama-float64-zero1", "llama-float64-zero2", "t5-float64-zero1",
  "t5-float64-zero2", "conv-float64-zero1", "conv-float64-zero2", "llama-float64-zero3-mqa",
  "layers-float64-zero3-dropout" }
  or { "t5-float64-zero1", "conv-float64-zero2", "layers-float64-zero3-dropout" }
local more_sequence = is_full and { "llama-float64-zero0-sequence", "t5-float64-zero0-sequence",
  "conv-float64-zero0-sequence", "llama-float64-zero0-sequence-mqa" }
  or { "t5-float64-zero0-sequence", "llama-float64-zero0-sequence-mqa" }
local shared_sequence = { "gpt-float64-zero3-sequence-dropout", "llama-float64-zero3-sequence",
  "t5-float64-zero2-sequence", "conv-float64-zero1-sequence" }

-- Groups of two processes, each with a copy of the state of zero.
local in_groups = { "gpt-float64-zero0-group2", "gpt-float64-zero1-group2-dropout",
  "gpt-float64-zero2-group2", "gpt-float64-zero3-group2-dropout",
  "gpt-float64-zero3-group2-recompute-dropout", "llama-float64-zero3-group2",
  "t5-float64-zero3-group2", "conv-float64-zero3-group2", "conv-float64-zero2-group2",
  "gpt-float16-zero3-group2", "gpt-float32-zero1-group2" }

-- Two processes with the positions of each example.
local in_context = { "gpt-float64-zero0-context2", "gpt-float64-zero3-context2-dropout",
  "gpt-float64-zero1-context2-recompute-dropout",
  "gpt-float64-zero1-context2-selective-dropout", "llama-float64-zero0-context2",
  "llama-float64-zero2-context2-mqa", "t5-float64-zero3-context2", "conv-float64-zero1-context2",
  "layers-float64-zero0-context2-dropout", "gpt-bfloat16-zero3-context2",
  "gpt-float16-zero0-context2", "gpt-autocast:bfloat16-zero0-context2-dropout" }
local context_sequence = { "gpt-float64-zero0-context2-sequence-dropout",
  "llama-float64-zero3-context2-sequence", "t5-float64-zero0-context2-sequence" }
local context_groups = { "gpt-float64-zero3-context4-dropout", "llama-float64-zero0-context4-mqa",
  "t5-float64-zero1-context4", "gpt-float64-zero3-context2-group1-dropout" }

-- Pipelines of two and four stages, of which each step has two micro-batches.
local in_stages = { "gpt-float64-zero0-stages2", "gpt-float64-zero0-stages2-recompute-dropout",
  "llama-float64-zero0-stages2-mqa", "t5-float64-zero0-stages2", "conv-float64-zero0-stages2",
  "gpt-bfloat16-zero0-stages2-offload", "gpt-float16-zero0-stages2",
  "gpt-autocast:bfloat16-zero0-stages2-dropout", "t5-float64-zero0-stages2-chunks2",
  "conv-float64-zero0-stages2-chunks2" }
local shared_stages = { "gpt-float64-zero1-stages2-dropout", "gpt-float64-zero2-stages2",
  "gpt-float64-zero3-stages2-recompute-dropout", "gpt-float64-zero3-stages2-selective-dropout",
  "llama-float64-zero3-stages2",
  "t5-float64-zero3-stages2", "conv-float64-zero3-stages2", "gpt-float16-zero3-stages2",
  "t5-float64-zero0-stages4", "conv-float64-zero0-stages4", "t5-float64-zero1-stages2-chunks2",
  "conv-float64-zero3-stages2-chunks2" }

-- Three kinds of shards at once, on eight processes.
local of_three_kinds = { "gpt-float64-zero0-context2-stages2-dropout",
  "llama-float64-zero0-context2-stages2-mqa", "t5-float64-zero0-context2-stages2",
  "conv-float64-zero0-context2-stages2", "llama-float64-zero0-context2-stages2-sequence",
  "gpt-float64-zero0-context2-stages2-recompute-dropout", "gpt-float64-zero3-stages2-dropout",
  "llama-float64-zero2-stages2", "t5-float64-zero3-stages2",
  "llama-float64-zero3-context2-sequence", "t5-float64-zero3-context4",
  "gpt-float64-zero3-stages2-group1-dropout" }

local one = train(1, 1, all)

--- The run of one process that a run must equal.
local function reference(name)
  return (name:gsub("zero%d", "zero0"):gsub("-group%d", ""):gsub("-context%d", "")
    :gsub("-stages%d", ""):gsub("-chunks%d", ""):gsub("-sequence", ""):gsub("-recompute", "")
    :gsub("-selective", ""):gsub("-offload", ""))
end

local tolerances = { float64 = 1e-9, float32 = 1e-4, bfloat16 = 0.05, float16 = 1e-3,
  ["autocast:bfloat16"] = 0.05, ["autocast:float16"] = 1e-3,
  -- Its running statistics are in float16 too, and each step rounds them.
  ["conv-float16"] = 4e-3 }

local function compare(folder, name)
  local dtype = name:match "-([%w:]+)-"
  local tolerance = tolerances[name:match "^%w+-[%w:]+"] or tolerances[dtype]
  local expected_folder, actual_folder = one .. "/" .. reference(name), folder .. "/" .. name
  local expected_losses = runs.losses(expected_folder)
  assert(expected_losses:numel() == n_steps and expected_losses[-1] < expected_losses[0])
  runs.expect_near(name .. ": losses", runs.losses(actual_folder), expected_losses,
    tolerance)
  local expected = torch.load(expected_folder .. "/result.safetensors")
  local actual = torch.load(actual_folder .. "/result.safetensors")
  runs.expect_near(name .. ": eval_loss", actual.evaluated, expected.evaluated, tolerance)
  if dtype ~= "float64" then return end
  runs.expect_near(name .. ": predictions", actual.predictions, expected.predictions, 1e-9)
  local names, params = tree.paths(expected.params), tree.leaves(actual.params)
  for i, param in ipairs(tree.leaves(expected.params)) do
    runs.expect_near(name .. ": " .. names[i], params[i], param, 1e-9)
  end
end

-- On 4x1, beside groups, and 1x4 resume_spec.lua and families.lua train too.
local layouts = { { 2, 1 }, { 2, 2 }, { 4, 2 }, { 4, 1 }, { 8, 2 }, is_full and { 4, 4 } }
for _, layout in ipairs(layouts) do
  if not layout then break end
  local n, n_model_shards = unpack(layout)
  local names = {}
  local function add(more, n_alike)
    for i, name in ipairs(more) do
      if testing.is_chosen(i, n_alike or 1) then names[#names + 1] = name end
    end
  end
  if n == 8 then
    add(of_three_kinds, 4)
  else
    if is_full or n_model_shards > 1 or n == 2 then
      add(all, n / 2)
      if n > n_model_shards then add(shared, n / 2) end
    end
    if n_model_shards > 1 then add(sequence) end
    if n > n_model_shards and (is_full or n == 2) then add(more_shared) end
    if n_model_shards > 1 and (is_full or n == 2) then add(more_sequence) end
    if n > n_model_shards and n_model_shards > 1 then add(shared_sequence) end
    if n == 4 and n_model_shards == 2 then
      add { "gpt-float64-zero3-group1-dropout", "gpt-float64-zero1-group1-sequence" }
    end
    if n == 4 and n_model_shards == 1 then add(in_groups, 2) end
    if n > n_model_shards then add(in_context, n == 4 and n_model_shards == 1 and 2 or 1) end
    if n == 4 and n_model_shards == 2 then add(context_sequence) end
    if n == 4 and n_model_shards == 1 then add(context_groups) end
    if n > n_model_shards then add(in_stages, n == 4 and 2 or 1) end
    if n == 4 and n_model_shards == 1 then add(shared_stages) end
  end
  local folder
  test(("%dx%d trains"):format(n / n_model_shards, n_model_shards), function()
    folder = train(n, n_model_shards, names)
  end)
  for _, name in ipairs(folder and names or {}) do
    test(("%dx%d: %s"):format(n / n_model_shards, n_model_shards, name), function()
      compare(folder, name)
    end)
  end
end

program.remove_folder()
testing.finish()
