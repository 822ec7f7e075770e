-- model.generate against transformers: the same tokens, for every family and way of searching.
local cases = require "model_cases"
local redco = require "redco"
local testing = require "testing"

local torch = redco.torch
local test = testing.test

local names = cases.names

local function shown(rows)
  local lines = {}
  for i, row in ipairs(rows) do lines[i] = table.concat(row, " ") end
  return table.concat(lines, "\n")
end

for _, folder in ipairs(cases.folders) do
  for _, name in ipairs(names) do
    local case = cases.open(folder, name)
    local model = redco.models.from_pretrained(case.dir)
    model.generation_config = {}  -- what a case gives is all that holds
    local inputs = {}
    for key, rows in pairs(case.expected.generation.inputs) do inputs[key] = torch.tensor(rows) end
    if case.arrays["gen.pixel_values"] then
      inputs.pixel_values = case.arrays["gen.pixel_values"]
    end
    for _, expected in ipairs(case.expected.generation.cases) do
      test(("%s/%s: %s"):format(folder, name, expected.name), function()
        local sequences, scores = model.generate(model.params, inputs, expected.kwargs)
        testing.expect_equal(shown(sequences:tolist()), shown(expected.sequences))
        if expected.sequences_scores_fp64 then
          testing.expect_close(scores, torch.tensor(expected.sequences_scores_fp64), 1e-4)
        end
      end)
    end
  end
end

testing.finish()
