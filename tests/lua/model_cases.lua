--- The reference cases of the model families: tests/cases, and the larger set where REDCO_CASES
--- names one (tests/cases/README.md).
local redco = require "redco"
local testing = require "testing"
local torch = redco.torch

local cases = { folders = { assert(os.getenv "REDCO_SOURCE") .. "/tests/cases" } }

-- The names of the folders of tests/cases with expected.json and this file.
local function folders_with(file)
  local names = {}
  local list = assert(io.popen(("cd '%s' && ls -d */%s */expected.json"):format(cases.folders[1],
    file)))
  local has = {}
  for line in list:lines() do
    local name = line:match "^[^/]*"
    if has[name] then names[#names + 1] = name end
    has[name] = true
  end
  list:close()
  table.sort(names)
  return names
end

--- One per family and form of it.
cases.names = folders_with "config.json"

--- Adapters on the model of another case, and its batches.
cases.lora_names = folders_with "adapter_config.json"

if os.getenv "REDCO_CASES" then
  for folder in os.getenv("REDCO_CASES"):gmatch "[^:]+" do
    cases.folders[#cases.folders + 1] = folder
  end
else
  print "REDCO_CASES names no larger set of cases: only tests/cases is read"
end

--- Types of models whose layers need the length of a text as a number: a static cache is not for
--- them.
cases.needs_length = { t5 = true }

--- Those of these cases that a folder has.
function cases.found(folder, names)
  local found = {}
  for _, name in ipairs(names) do
    local file = io.open(("%s/%s/expected.json"):format(folder, name))
    if file then
      file:close()
      found[#found + 1] = name
    end
  end
  return found
end

--- Everything of one case: `dir`, `arrays`, `expected` (the JSON), `base` (the case whose model an
--- adapter is for).
function cases.open(folder, name)
  local dir = folder .. "/" .. name
  local case = {
    dir = dir,
    arrays = torch.load(dir .. "/expected.safetensors"),
    expected = redco.data.json(dir .. "/expected.json"),
  }
  -- Larger sets have other names for what models of texts and images return.
  local arrays = case.arrays
  arrays["fwd.logits"] = arrays["fwd.logits"] or arrays["fwd.logits_per_image"]
    or arrays["fwd.pooled"] or arrays["fwd.logits_per_text"] and arrays["fwd.logits_per_text"]:t()
  if case.expected.base then
    case.base = cases.open(folder, case.expected.base:match "[^/]*$")
    for key, array in pairs(case.base.arrays) do
      if key:find "^batch" then case.arrays[key] = array end
    end
  end
  return case
end

--- Returns peft's name of an adapter's parameter while it trains.
function cases.peft_name(name)
  return "base_model.model." .. name:gsub("weight$", "default.weight")
end

--- The adapters of parameters by those names.
function cases.adapters(params)
  local found = {}
  for name, leaf in pairs(params) do
    if torch.is_tensor(leaf) and not redco.lora.is_frozen(name) then
      found[cases.peft_name(name)] = leaf
    end
  end
  return found
end

-- The names of results that transformers computed from the inputs.
local results = { logits = true, images_u8 = true, encoder_last_hidden_state = true }

--- The inputs whose names begin with `prefix`, as a model takes them.
function cases.inputs(case, prefix)
  local inputs = {}
  for name, tensor in pairs(case.arrays) do
    local key = name:match("^" .. prefix:gsub("%p", "%%%0") .. "%.([%w_]+)$")
    if key and not results[key] then inputs[key] = tensor end
  end
  local several = inputs.multimask_output  -- a number in files of tensors
  if several then inputs.multimask_output = several:item() ~= 0 end
  return inputs
end

--- The inputs of fwd.logits.
function cases.forward_inputs(case)
  local inputs = cases.inputs(case, "fwd")
  local is_there = inputs.input_ids or inputs.pixel_values or inputs.input_values
  return is_there and inputs or cases.inputs(case, "batch0")
end

--- Returns the result of a call; if it is several tensors, one row for each image.
function cases.output(model, params, inputs, options)
  local found = { model(params, inputs, options) }
  if not torch.is_tensor(found[2]) then return found[1] end
  for i, result in ipairs(found) do found[i] = result:flatten(1) end
  return torch.cat(found, 1)
end

--- The same, but for boxes, which stand behind the logits.
function cases.called(model, params, inputs, options)
  if model.family.task ~= "object_detection" then
    return cases.output(model, params, inputs, options)
  end
  return torch.cat({ model(params, inputs, options) }, -1)
end

--- Returns the name of a parameter in files.
function cases.file_name(model, name)
  return model.family.file_name and model.family.file_name(name) or name
end

--- The loss and its count; of features the mean of their squares.
function cases.loss(model, params, inputs, options)
  if model.output and not model.family.loss then
    return cases.output(model, params, inputs, options):pow(2):mean()
  end
  return model.loss(params, inputs, options)
end

--- Returns the prompts of its `generation.cases`.
function cases.prompts(case)
  local inputs = {}
  for key, rows in pairs(case.expected.generation.inputs) do inputs[key] = torch.tensor(rows) end
  for _, key in ipairs { "pixel_values", "input_features" } do
    inputs[key] = case.arrays["gen." .. key]
  end
  return inputs
end

--- Whether the labels of a model are those of the next tokens.
function cases.predicts_next(model)
  return not model.is_encoder_decoder and not model.family.task
end

--- Inputs with `labels` as a loss takes them: a decoder-only model's position predicts the next
--- token, which the library's own losses see to.
function cases.training_inputs(case, prefix, is_ready)
  local inputs = cases.inputs(case, prefix)
  if is_ready then return inputs end
  local next_ones = torch.full_like(inputs.labels, -100)
  local length = inputs.labels:size(1) - 1
  next_ones:narrow(1, 0, length):copy_(inputs.labels:narrow(1, 1, length))
  inputs.labels = next_ones
  return inputs
end

--- The inputs of a loss in the file of a random model.
function cases.random_inputs(inputs, model)
  local is_decoder = not model.is_encoder_decoder and inputs.input_ids and not model.family.task
  local prefixed = {}
  for name, tensor in pairs(inputs) do
    if not name:find ".%." then prefixed["batch." .. name] = tensor end
  end
  return cases.training_inputs({ arrays = prefixed }, "batch", not is_decoder)
end

function cases.expect_near(what, actual, expected, relative)
  local off = math.abs(actual - expected)
  if off > relative * math.abs(expected) or off ~= off then
    error(("%s is %.9g, expected %.9g"):format(what, actual, expected), 2)
  end
end

local function norm(tensor) return tensor:double():norm():item() end

-- In the same order in all processes, as what is collective must be.
local function names_of(tensors)
  local names = {}
  for name in pairs(tensors) do names[#names + 1] = name end
  table.sort(names)
  return names
end

--- The gradients of the loss of batch0.
function cases.expect_gradients(case, gradients)
  local training, total = case.expected.training, 0
  for _, name in ipairs(names_of(gradients)) do
    local tensor = gradients[name]
    local size = training.grad_norms_fp64[name] or 0
    assert(training.grad_norms_fp64[name] or norm(tensor) == 0, name .. " is not to be trained")
    total = total + norm(tensor) ^ 2
    if size > 1e-9 then  -- others are 0 but for rounding
      cases.expect_near("the gradient of " .. name, norm(tensor), size, 1e-4)
      local whole = case.arrays["grad." .. name]
      if whole then testing.expect_close(tensor:full(), whole, 1e-3, 1e-4 * norm(whole)) end
    end
  end
  for name, size in pairs(training.grad_norms_fp64) do
    assert(gradients[name] or size == 0, "there is no gradient of " .. name)
  end
  cases.expect_near("all gradients", math.sqrt(total), training.grad_norm_total_fp64, 1e-4)
end

--- The loss before each step of AdamW, and the parameters after all.
function cases.expect_trained(case, losses, params)
  local adamw = case.expected.training.adamw
  for step, loss in ipairs(adamw.losses_fp64) do
    cases.expect_near("the loss of step " .. step, losses[step], loss, 1e-5)
  end
  local before = case.base and {} or torch.load(case.dir .. "/model.safetensors")
  for _, name in ipairs(names_of(params)) do
    local after = adamw.param_norms_after_fp64[name] or norm(before[name])  -- it is not trained
    local is_key_bias = name:find "k_proj%.bias" or name:find "c_attn%.bias"
      or name:find "key%.bias" or name:find "qkv%.bias" or name:find "in_proj_bias"
      or name:find "relative_k_proj"
    -- The gradient of a key's bias, and of positions that are alike for all keys, is 0 but for
    -- rounding, of which Adam makes whole steps.
    cases.expect_near(name, norm(params[name]), after,
      is_key_bias and 1e-2 or 1e-5)
  end
end

return cases
