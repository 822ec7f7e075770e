--- The sequences of tokens in batches.
local model_loss = require "redco.check.model_loss"
local torch = require "redco.torch"

local rows = {}

local ignored = -100

local function is_integers(x) return torch.is_tensor(x) and x.dtype:find "^u?int" ~= nil end

--- Returns lists of the rows of a tensor [..., length]; nil for another value, or if there are not
--- `count` of them.
function rows.lists_of(x, count)
  if not is_integers(x) and not (torch.is_tensor(x) and x.dtype == "bool") or x:dim() < 2 then
    return nil
  end
  local lists = x:long():flatten(0, -2):tolist()
  if not count or #lists == count then return lists end
end

-- Returns the place of the last token before the padding of a row. Padding repeats pad or a token
-- without labels.
local function end_of(ids, labels, pad, is_shared)
  local last, n = #ids, ids[#ids]
  local function is_padding(t)
    return ids[t] == n and (n == pad or labels and labels[t] == ignored)
  end
  while last > 0 and is_padding(last) do last = last - 1 end
  local length = #ids - last
  if length == 0 or n ~= pad and length < 2 then return #ids end
  -- If the token of the end also pads, the first padding token ends the text where it is a label:
  -- at the same position or, if the loss does not shift labels, at the position before.
  local is_end = n ~= pad
    or is_shared and (not labels or labels[last] == pad or labels[last + 1] == pad)
  return is_end and last + 1 or last
end

-- Returns the first and the last token of a row that are no padding.
local function span_of(ids, labels, mask, tokenizer)
  if mask then
    local first, last = 1, #mask
    while first <= last and mask[first] == 0 do first = first + 1 end
    while last >= first and mask[last] == 0 do last = last - 1 end
    return first, last
  end
  local pad = tokenizer and tokenizer.pad_token_id
  local is_shared = pad ~= nil and (pad == tokenizer.eos_token_id)
  local last, first = end_of(ids, labels, pad, is_shared), 1
  if pad and not is_shared and pad ~= tokenizer.bos_token_id then
    while first < last and ids[first] == pad do first = first + 1 end
  end
  return first, last
end

local function part(list, first, last)
  local result = {}
  for t = first, last do result[#result + 1] = list[t] end
  return result
end

-- Splits a row at its segments: several sequences in one row. Segment 0 is padding.
local function segments_of(ids, labels, segments)
  local found, first = {}, 1
  for t = 1, #ids do
    if segments[t + 1] ~= segments[t] then
      if segments[t] ~= 0 then
        found[#found + 1] = { ids = part(ids, first, t), labels = labels and part(labels, first, t),
          is_packed = true }
      end
      first = t + 1
    end
  end
  return found
end

local function row_of(s, ids, labels, mask)
  local first, last = span_of(ids, labels, mask, s.tokenizer)
  local row = { ids = part(ids, first, last), labels = labels and part(labels, first, last),
    pads_left = first - 1, pads_right = #ids - last }
  row.labels_of_padding = {}
  for t = 1, labels and #ids or 0 do
    if t < first or t > last then table.insert(row.labels_of_padding, labels[t]) end
  end
  row.whole = { ids = ids, mask = mask }
  return row
end

-- Returns the share of labels that are the token `distance` places after theirs, over all rows.
local function share_at(list, distance)
  local equal, count = 0, 0
  for _, row in ipairs(list) do
    for t, label in ipairs(row.labels or {}) do
      local token = row.ids[t + distance]
      if label ~= ignored and token then
        count = count + 1
        if label == token then equal = equal + 1 end
      end
    end
  end
  return count > 0 and equal / count or 0
end

-- Returns by how many positions the labels are ahead of the inputs, or nil.
local function distance_of(list)
  local best, share
  for _, distance in ipairs { 1, 0, 2, -1 } do
    local found = share_at(list, distance)
    if found > (share or 0.98) then best, share = distance, found end
  end
  return best
end

local function shifted(labels)
  local next_ones = {}
  for t = 1, #labels do next_ones[t] = labels[t + 1] or ignored end
  return next_ones
end

-- How far labels [batch, length] are from the tokens that they stand for, and whether the loss
-- shifts them: "next", "own" (aligned with the inputs), "other" (no tokens of the inputs).
local function kind_of(s, list)
  local model, distance = s.model, distance_of(list)
  s.distance = distance
  if model and not model.is_decoder then return "other" end
  if s.takes_labels then return s.step.seen.shift and "own" or "next" end
  -- The script's own loss may shift labels.
  return distance == 1 and "next" or distance == 0 and "own" or "other"
end

-- The tensors of a batch that are sequences: inputs, their labels, mask and segments as lists.
local function sequences_of(batch, has_labels)
  local ids = rows.lists_of(batch.input_ids)
  if not ids then return nil end
  local labels = has_labels and batch.labels
  local is_alike = torch.is_tensor(labels) and labels:numel() == batch.input_ids:numel()
  local mask = batch.attention_mask
  return ids, is_alike and rows.lists_of(labels, #ids) or nil,
    torch.is_tensor(mask) and rows.lists_of(mask:ne(0), #ids) or nil,
    rows.lists_of(batch.segment_ids, #ids)
end

--- The sequences of tokens, without padding: {ids, labels, example, batch, has_mask, pads_left,
--- pads_right, labels_of_padding, whole}. `labels` are next tokens, `given` those of the batch. A
--- packed row is several sequences, with is_packed and without what is about padding.
function rows.of(s)
  if not s.batches then return nil, "there are no batches" end
  local list, has_labels = {}, not (s.model and s.model.is_encoder_decoder)
  for b, each in ipairs(s.batches) do
    local ids, labels, mask, segments = sequences_of(each.batch, has_labels)
    if not ids then return nil, "the batches have no input_ids" end
    local per_example = #ids / #each.examples
    for i = 1, #ids do
      if labels then labels[i] = model_loss.without_ignored(s, labels[i]) end
      local found = segments and segments_of(ids[i], labels and labels[i], segments[i])
        or { row_of(s, ids[i], labels and labels[i], mask and mask[i]) }
      for _, row in ipairs(found) do
        row.example = each.examples[math.floor((i - 1) / per_example) + 1]
        row.place = (i - 1) % per_example + 1  -- among those of the example
        row.batch, row.has_mask = b, each.batch.attention_mask ~= nil
        list[#list + 1] = row
      end
    end
  end
  local kind = kind_of(s, list)
  for _, row in ipairs(list) do
    row.given = row.labels
    if kind == "own" and row.labels then row.labels = shifted(row.labels) end
    if kind == "own" and row.has_mask then row.labels_of_padding = {} end
    if kind == "other" then row.labels = nil end
  end
  s.kind = kind
  return list
end

return rows
