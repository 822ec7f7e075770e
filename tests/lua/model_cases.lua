--- The reference cases of the model families: tests/cases, and the larger set where REDCO_CASES
--- names one (tests/cases/README.md).
local redco = require "redco"
local torch = redco.torch

local cases = { folders = { "../cases" } }
if os.getenv "REDCO_CASES" then
  cases.folders[2] = os.getenv "REDCO_CASES"
else
  print "REDCO_CASES names no larger set of cases: only tests/cases is read"
end

--- Everything of one case: `dir`, `arrays`, `expected` (the JSON).
function cases.open(folder, name)
  local dir = folder .. "/" .. name
  return {
    dir = dir,
    arrays = torch.load(dir .. "/expected.safetensors"),
    expected = redco.data.json(dir .. "/expected.json"),
  }
end

--- The inputs whose names begin with `prefix`, as a model takes them.
function cases.inputs(case, prefix)
  local inputs = {}
  for name, tensor in pairs(case.arrays) do
    local key = name:match("^" .. prefix:gsub("%p", "%%%0") .. "%.([%w_]+)$")
    if key and key ~= "logits" and key ~= "images_u8" then inputs[key] = tensor end
  end
  return inputs
end

--- The same with `labels` as a loss takes them: a decoder-only model's position predicts the next
--- token, which the library's own losses see to.
function cases.training_inputs(case, prefix, is_encoder_decoder)
  local inputs = cases.inputs(case, prefix)
  if is_encoder_decoder then return inputs end
  local next_ones = torch.full_like(inputs.labels, -100)
  local length = inputs.labels:size(1) - 1
  next_ones:narrow(1, 0, length):copy_(inputs.labels:narrow(1, 1, length))
  inputs.labels = next_ones
  return inputs
end

return cases
