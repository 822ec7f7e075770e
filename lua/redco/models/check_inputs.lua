--- Checks the arguments of a function of a model. Each family lists the inputs that it reads:
---   inputs: names, in the order in which errors list them
---   labels: those of the loss; by default "labels", which a batch may have in any call
local fail = require "redco.fail"
local native = require "redco.native"
local torch = require "redco.torch"

-- Patterns of the names of inputs that are tensors.
local tensors = { "_ids$", "_mask$", "_values$", "_features$", "^labels$", "_positions$",
  "_shapes$", "_sizes$", "_states$", "_images$", "_thw$" }

-- Inputs with one element per token: the input that has the tokens, and whether tokens in the cache
-- count, too.
local of_tokens = {
  attention_mask = { "input_ids", true },
  token_type_ids = { "input_ids" },
  position_ids = { "input_ids", may_be_single = true },
  segment_ids = { "input_ids" },
  decoder_attention_mask = { "decoder_input_ids", true },
  decoder_position_ids = { "decoder_input_ids", may_be_single = true },
}

-- Inputs that generation does not take, because it makes them itself.
local made_by_generation = { position_ids = true, segment_ids = true, decoder_position_ids = true }

local function is_of_tensor(key)
  for _, ending in ipairs(tensors) do
    if key:find(ending) then return true end
  end
end

-- Lists the inputs that a function of a model reads.
local function accepted(name, family)
  local names, is_generation = {}, name:find "%.generate$"
  for _, list in ipairs { family.inputs, family.labels or { "labels" } } do
    for _, input in ipairs(list) do
      if not (is_generation and made_by_generation[input]) then names[#names + 1] = input end
    end
  end
  return names
end

local function check_names(name, family, inputs)
  local names = accepted(name, family)
  local is_known = {}
  for _, input in ipairs(names) do is_known[input] = true end
  for key in pairs(inputs) do
    if not is_known[key] then
      local near = native.nearest(tostring(key), names)
      fail("%s: inputs.%s is not supported%s; %s of the %s reads %s", family.model_type, key,
        near and (", did you mean '%s'?"):format(near) or "", name, family.architecture,
        table.concat(names, ", "))
    end
  end
end

local function listed(shape) return "[" .. table.concat(shape, ", ") .. "]" end

-- `past` is the number of tokens in the cache.
local function check_shapes(family, inputs, past)
  for key, row in pairs(of_tokens) do
    local input, ids = inputs[key], inputs[row[1]]
    if input and ids then
      local expected = ids.shape
      if row[2] then expected[#expected] = expected[#expected] + past end
      local is_single = row.may_be_single and input:dim() > 1 and input:size(0) == 1
        and input:size(-1) == expected[#expected]
      if not is_single and listed(input.shape) ~= listed(expected) then
        local after = row[2] and past > 0 and (", after %d tokens in the cache"):format(past) or ""
        fail("%s: inputs.%s is %s, expected %s: %s is %s%s", family.model_type, key,
          listed(input.shape), listed(expected), row[1], listed(ids.shape), after)
      end
    end
  end
end

--- Raises an error unless `params` and `inputs` are tables, the inputs are tensors that the family
--- reads, inputs.input_ids is a batch, and masks fit it. `name` is that of the function,
--- "model.loss"; `options` may have a cache.
return function(name, family, params, inputs, options)
  if type(params) ~= "table" then
    fail("%s: the first argument is the parameters, model.params, got %s%s", name,
      native.describe(params), name == "model.loss" and "; a Trainer takes model.loss_fn" or "")
  end
  if type(inputs) ~= "table" or inputs[1] ~= nil then
    fail("%s: inputs is a table such as { input_ids = ids }, got %s", name,
      native.describe(inputs))
  end
  check_names(name, family, inputs)
  for key, value in pairs(inputs) do
    if not torch.is_tensor(value) and is_of_tensor(key) then
      fail("%s: inputs.%s: expected a Tensor, got %s; torch.tensor makes one", name, key,
        native.describe(value))
    end
  end
  local ids = inputs.input_ids
  if torch.is_tensor(ids) and ids:dim() < 2 then
    fail("%s: inputs.input_ids: expected [batch, length], got %s; ids:unsqueeze(0) makes a "
      .. "batch of one row", name, native.describe(ids))
  end
  local cache = type(options) == "table" and options.cache
  check_shapes(family, inputs, cache and cache:n_columns() or 0)
end
