-- Training by several processes that share a GPU, with collectives by Gloo: the losses and the
-- predictions of one process on the CPU. NCCL needs a GPU for each process.
local gpu = require "gpu"
local program = require "program"
local runs = require "runs"
local testing = require "testing"
local torch = require "redco.torch"

local test = testing.test
local tolerances = { float64 = 1e-9, float32 = 1e-4, bfloat16 = 0.05 }

local function train(folder, n, n_model_shards, names, device)
  local workdir = ("%s/%s"):format(program.folder, folder)
  local code, out, err = runs.train(n, n_model_shards, {
    workdir = workdir, runs = table.concat(names, " "), n_epochs = 2, n_examples = 13,
    per_device_batch_size = 4 * n_model_shards / n, device = device,
  }, { REDCO_COLLECTIVES = "gloo" })
  if code ~= 0 then error(("exit code %d\n%s%s"):format(code, out, err), 2) end
  return workdir
end

local plain = { "gpt-float64-zero0", "llama-float64-zero0", "t5-float64-zero0",
  "conv-float64-zero0", "gpt-float32-zero0", "gpt-bfloat16-zero0", "gpt-float64-zero0-dropout" }
local zero = { "gpt-float64-zero1", "gpt-float64-zero2", "gpt-float64-zero3-dropout",
  "gpt-float64-zero3-recompute-dropout", "llama-float64-zero3", "conv-float64-zero3",
  "gpt-bfloat16-zero3" }
local sequence = { "gpt-float64-zero0-sequence-dropout", "llama-float64-zero0-sequence" }

local expected_folder = train("cpu", 1, 1, plain, "cpu")

local function compare(folder, name)
  local reference = name:gsub("zero%d", "zero0"):gsub("-sequence", ""):gsub("-recompute", "")
  if name:find "^gpt%-float64.*dropout" then reference = "gpt-float64-zero0-dropout" end
  local tolerance = tolerances[name:match "-(%w+)-"]
  local expected = torch.load(("%s/%s/result.safetensors"):format(expected_folder, reference))
  local actual = torch.load(("%s/%s/result.safetensors"):format(folder, name))
  runs.expect_near("losses", runs.losses(folder .. "/" .. name),
    runs.losses(expected_folder .. "/" .. reference), tolerance)
  runs.expect_near("eval_loss", actual.evaluated, expected.evaluated, tolerance)
  if tolerance < 1e-8 then
    runs.expect_near("predictions", actual.predictions, expected.predictions, tolerance)
  end
end

for _, layout in ipairs { { 1, 1, { plain } }, { 2, 1, { plain, zero } },
  { 2, 2, { plain, sequence } }, { 4, 2, { zero, sequence } } } do
  local n, n_model_shards, lists = unpack(layout)
  local text, names, folder = ("%dx%d"):format(n / n_model_shards, n_model_shards), {}, nil
  for _, list in ipairs(lists) do
    for _, name in ipairs(list) do names[#names + 1] = name end
  end
  test(text .. " trains", function() folder = train(text, n, n_model_shards, names, gpu.device) end)
  for _, name in ipairs(folder and names or {}) do
    test(("%s: %s"):format(text, name), function() compare(folder, name) end)
  end
end

testing.finish()
