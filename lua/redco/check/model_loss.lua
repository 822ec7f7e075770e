--- The arguments that a script gives the loss of its model.
local torch = require "redco.torch"

local model_loss = {}

local ignored = -100

--- Watches the first call of a model's loss or logprobs. Returns what it is given, {name, labels,
--- shift, ignore_index}, empty until then, and a function that ends the watch.
function model_loss.watch(model)
  local seen, originals = {}, {}
  for _, name in ipairs { "loss", "logprobs" } do
    local original = model and rawget(model, name)
    if original then
      originals[name] = original
      model[name] = function(p, inputs, options)
        if not seen.labels and type(inputs) == "table" then
          local o = type(options) == "table" and options or {}
          seen.labels, seen.shift, seen.ignore_index = inputs.labels, o.shift, o.ignore_index
          seen.name = name
        end
        return original(p, inputs, options)
      end
    end
  end
  return seen, function()
    for name, original in pairs(originals) do model[name] = original end
  end
end

--- Whether the labels of the batch are those that the model's loss is given; nil if not.
function model_loss.takes_labels(s)
  local batch = s.batches and s.batches[1].batch
  local seen, labels = s.step and s.step.seen or {}, batch and batch.labels
  if not torch.is_tensor(seen.labels) then return nil, "the loss is not that of a model" end
  if not torch.is_tensor(labels) or not s.step.labels
    or s.step.labels:numel() ~= seen.labels:numel()
    or not s.step.labels:flatten():equal(seen.labels:flatten()) then
    return nil, "loss_fn changes the labels"
  end
  return true
end

--- Replaces the labels that the loss ignores by -100.
function model_loss.without_ignored(s, labels)
  local other = s.takes_labels and s.step.seen.ignore_index
  if not other or other == ignored then return labels end
  for t, label in ipairs(labels) do labels[t] = label == other and ignored or label end
  return labels
end

return model_loss
