--- The log-probabilities of whole sequences.
local arguments = require "redco.arguments"
local fail = require "redco.fail"
local native = require "redco.native"
local registry = require "redco.registry"
local torch = require "redco.torch"

local where = "preference.sequence_logprobs"
local options = arguments(where, { train = false, shift = false, ignore_index = -100 }, { "rng" })

-- Returns what the model reads of a batch, with [rows, length] in place of [..., length].
local function inputs_of(model, batch)
  local inputs = {}
  for _, name in ipairs(model.family.inputs) do inputs[name] = batch[name] end
  inputs.labels = batch.labels
  for name, value in pairs(inputs) do
    if torch.is_tensor(value) and value:dim() > 2 then
      inputs[name] = value:reshape { -1, value:size(-1) }
    end
  end
  return inputs
end

-- Raises an error for a sequence without labels. Checks only on a CPU, because on a GPU the check
-- would wait for the device.
local function check_counts(counts)
  local own = counts:is_sharded() and counts:to_local() or counts
  if own.device ~= "cpu" or own:numel() == 0 then return end
  local first = own:eq(0):reshape({ -1 }):nonzero()
  if first:size(0) > 0 then
    fail("%s: labels: sequence %d of %d has no token that counts: each needs one", where,
      first[0][0]:item() + 1, own:numel())
  end
end

return registry.define("redco.preference.sequence_logprobs", [[
sequence_logprobs(model, params, batch, {train = false, rng = nil, shift = false,
  ignore_index = -100}) -> logps [...], counts [...]
Returns the sums of the log-probabilities of each sequence's labels, and the numbers of labels, for
batch.input_ids and batch.labels of [..., length]: of pairs, [pairs, 2, length], as
`redco.preference.collate` makes them. The model gets what it reads of the batch, as [rows, length].
Logits are computed in blocks of rows and not held all at once (`redco.nn.linear_logprobs`).
  model: a language model of `redco.models`
  shift: whether the labels are aligned with input_ids, as in `model.loss`
  train, rng: whether dropout is on, and its random numbers
For a reference model, call it inside `torch.no_grad` with other parameters, such as
`redco.lora.base(params)`, the model without its adapters.]],
function(model, params, batch, given)
  local o = options(given)
  if type(model) ~= "table" or not model.family or not model.logprobs then
    fail("%s: model: expected a language model of redco.models, got %s", where,
      native.describe(model))
  end
  if type(batch) ~= "table" or not torch.is_tensor(batch.labels) then
    fail("%s: batch: expected a table with input_ids and labels, got %s", where,
      type(batch) == "table" and "one without labels" or native.describe(batch))
  end
  local inputs = inputs_of(model, batch)
  local each, labels = model.logprobs(params, inputs, o)
  local counts = labels:ne(o.ignore_index):sum { 1 }
  check_counts(counts)
  local shape = batch.labels.shape
  shape[#shape] = nil
  return each:sum({ 1 }):reshape(shape), counts:reshape(shape)
end)
