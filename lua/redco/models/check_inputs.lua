--- Checks the first arguments of a function of a model.
local fail = require "redco.fail"
local native = require "redco.native"
local torch = require "redco.torch"

-- The ends of the names of inputs that are tensors.
local tensors = { "_ids$", "_mask$", "_values$", "_features$", "^labels$" }

local function is_of_tensor(key)
  for _, ending in ipairs(tensors) do
    if type(key) == "string" and key:find(ending) then return true end
  end
end

--- Raises an error unless `params` and `inputs` are tables, inputs are tensors and
--- inputs.input_ids is a batch. `name` is that of the function, "model.loss".
return function(name, params, inputs)
  if type(params) ~= "table" then
    fail("%s: the first argument is the parameters, model.params, got %s%s", name,
      native.describe(params), name == "model.loss" and "; a Trainer takes model.loss_fn" or "")
  end
  if type(inputs) ~= "table" or inputs[1] ~= nil then
    fail("%s: inputs is a table such as { input_ids = ids }, got %s", name,
      native.describe(inputs))
  end
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
end
