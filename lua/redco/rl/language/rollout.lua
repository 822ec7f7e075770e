--- A rollout: the samples of one epoch as tensors, and batches of them.
local torch = require "redco.torch"

local rollout = {}

-- Returns a number for each label of a sample, `filler` where no token of the policy is predicted.
local function aligned(sample, length, values, filler)
  local list, first = {}, #sample.prompt - 1
  for at = 1, length do list[at] = filler end
  for i, value in ipairs(values) do
    if sample.logprobs[i] then list[first + i] = value end  -- tools wrote the other tokens
  end
  return list
end

--- Returns samples as tensors [n, ...]: input_ids and labels [n, length], which are the next tokens
--- and -100 where none is trained, sampler_logps [n, length], and the numbers that are logged, by
--- name.
function rollout.tensors(samples, masks_truncated)
  local length = 0
  for _, sample in ipairs(samples) do
    length = math.max(length, #sample.prompt + #sample.tokens)
  end
  length = math.ceil(length / 8) * 8
  local ids, labels, logps, numbers = {}, {}, {}, {}
  for i, sample in ipairs(samples) do
    local row = {}
    for at = 1, length do
      row[at] = sample.prompt[at] or sample.tokens[at - #sample.prompt] or 0
    end
    local is_masked = masks_truncated and sample.finish_reason == "length"
    ids[i] = row
    labels[i] = aligned(sample, length, is_masked and {} or sample.tokens, -100)
    logps[i] = aligned(sample, length, is_masked and {} or sample.logprobs, 0)
    for name, value in pairs(sample.numbers) do
      numbers[name] = numbers[name] or {}
      numbers[name][i] = value
    end
  end
  for name, list in pairs(numbers) do numbers[name] = torch.tensor(list, { dtype = "float64" }) end
  return {
    input_ids = torch.tensor(ids, { dtype = "int64" }),
    labels = torch.tensor(labels, { dtype = "int64" }),
    sampler_logps = torch.tensor(logps, { dtype = "float32" }),
    metrics = numbers,
  }
end

--- Returns a batch of the samples with these numbers, from 1.
function rollout.batch(tensors, numbers)
  local chosen = torch.tensor(numbers, { dtype = "int64" }) - 1
  local batch = {}
  for name, value in pairs(tensors) do
    batch[name] = torch.is_tensor(value) and value:index_select(0, chosen)
      or rollout.batch(value, numbers)
  end
  return batch
end

return rollout
