--- The sequences of tokens in batches.
local torch = require "redco.torch"

local rows = {}

local ignored = -100

local function is_integers(x) return torch.is_tensor(x) and x.dtype:find "^u?int" ~= nil end

--- Watches the first call of a model's loss. Returns what it is given, {labels, shift, ignore_index},
--- empty until then, and a function that ends the watch.
function rows.watch_loss(model)
  local seen, originals = {}, {}
  for _, name in ipairs { "loss", "logprobs" } do
    local original = model and rawget(model, name)
    if original then
      originals[name] = original
      model[name] = function(p, inputs, options)
        if not seen.labels and type(inputs) == "table" then
          local o = type(options) == "table" and options or {}
          seen.labels, seen.shift, seen.ignore_index = inputs.labels, o.shift, o.ignore_index
        end
        return original(p, inputs, options)
      end
    end
  end
  return seen, function()
    for name, original in pairs(originals) do model[name] = original end
  end
end

-- Lists of the rows of a tensor [..., length]; nil for another value, or another number of rows.
local function lists_of(x, count)
  if not is_integers(x) and not (torch.is_tensor(x) and x.dtype == "bool") or x:dim() < 2 then
    return nil
  end
  local lists = x:long():flatten(0, -2):tolist()
  if not count or #lists == count then return lists end
end

-- The last token of a row that does not repeat its padding: pad, or a token without labels.
local function end_of(ids, labels, pad, is_shared)
  local last, n = #ids, ids[#ids]
  local function is_padding(t)
    return ids[t] == n and (n == pad or labels and labels[t] == ignored)
  end
  while last > 0 and is_padding(last) do last = last - 1 end
  local length = #ids - last
  if length == 0 or n ~= pad and length < 2 then return #ids end
  -- The first one may be the end of the text, which is trained, by the loss's shift or without.
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
  row.of_padding = { ids = {}, labels = {}, mask = mask and {} }
  for t = 1, #ids do
    if t < first or t > last then
      table.insert(row.of_padding.ids, ids[t])
      if labels then table.insert(row.of_padding.labels, labels[t]) end
    end
  end
  row.whole = { ids = ids, labels = labels, mask = mask }
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

-- The distance at which the labels are the inputs, or nil.
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
  -- The script has a loss of its own, which may shift labels.
  return distance == 1 and "next" or distance == 0 and "own" or "other"
end

-- The tensors of a batch that are sequences: inputs, their labels, mask and segments as lists.
local function sequences_of(batch, has_labels)
  local ids = lists_of(batch.input_ids)
  if not ids then return nil end
  local labels = has_labels and batch.labels
  local is_alike = torch.is_tensor(labels) and labels:numel() == batch.input_ids:numel()
  local mask = batch.attention_mask
  return ids, is_alike and lists_of(labels, #ids) or nil,
    torch.is_tensor(mask) and lists_of(mask:ne(0), #ids) or nil, lists_of(batch.segment_ids, #ids)
end

--- Whether the labels of the batch are those that the model's loss is given; nil if not.
function rows.takes_labels(s)
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

-- Replaces the labels that the loss ignores by -100.
local function without_ignored(s, labels)
  local other = s.takes_labels and s.step.seen.ignore_index
  if not other or other == ignored then return labels end
  for t, label in ipairs(labels) do labels[t] = label == other and ignored or label end
  return labels
end

--- The sequences of tokens, without padding.
function rows.of(s)
  if not s.batches then return nil, "there are no batches" end
  local list, has_labels = {}, not (s.model and s.model.is_encoder_decoder)
  for b, each in ipairs(s.batches) do
    local ids, labels, mask, segments = sequences_of(each.batch, has_labels)
    if not ids then return nil, "the batches have no input_ids" end
    local per_example = #ids / #each.examples
    for i = 1, #ids do
      if labels then labels[i] = without_ignored(s, labels[i]) end
      local found = segments and segments_of(ids[i], labels and labels[i], segments[i])
        or { row_of(s, ids[i], labels and labels[i], mask and mask[i]) }
      for _, row in ipairs(found) do
        row.example = each.examples[math.floor((i - 1) / per_example) + 1]
        row.batch, row.has_mask = b, each.batch.attention_mask ~= nil
        list[#list + 1] = row
      end
    end
  end
  local kind = kind_of(s, list)
  for _, row in ipairs(list) do
    row.given = row.labels
    if kind == "own" and row.labels then row.labels = shifted(row.labels) end
    if kind == "own" and row.has_mask and row.of_padding then row.of_padding.labels = {} end
    if kind == "other" then row.labels = nil end
  end
  s.kind = kind
  return list
end

-- The rows of labels of an encoder-decoder, which writes them.
local function written(s)
  local list = {}
  local pad = s.tokenizer and s.tokenizer.pad_token_id
  local is_shared = pad ~= nil and pad == s.tokenizer.eos_token_id
  for _, each in ipairs(s.batches) do
    for i, labels in ipairs(lists_of(each.batch.labels) or {}) do
      local output, n_padding = {}, 0
      labels = without_ignored(s, labels)
      for _, label in ipairs(labels) do
        if label ~= ignored then output[#output + 1] = label end
      end
      while output[#output] == pad and pad and (not is_shared or output[#output - 1] == pad) do
        output[#output], n_padding = nil, n_padding + 1
      end
      list[#list + 1] = { output = output, n_padding = n_padding, labels = labels,
        example = each.examples[i] or each.examples[1], is_written = true, length = #output }
    end
  end
  if #list == 0 then return nil, "the batches have no labels [batch, length]" end
  return list
end

--- The rows with what is trained of each: `output`, its labels other than -100. Those of an
--- encoder-decoder have no ids.
function rows.labelled(s)
  if s.model and s.model.is_encoder_decoder then
    if not s.batches then return nil, "there are no batches" end
    return written(s)
  end
  if not s.rows then return nil, s:why "rows" end
  local list = {}
  for _, row in ipairs(s.rows) do
    if row.labels and #row.ids > 0 then
      row.output = {}
      for t, label in ipairs(row.labels) do
        if label ~= ignored then
          row.first_trained = row.first_trained or t
          row.output[#row.output + 1] = label
        end
      end
      row.length = #row.ids
      list[#list + 1] = row
    end
  end
  if #list == 0 then return nil, "the labels are no tokens" end
  return list
end

-- The tokens that end a text or a turn.
local function end_tokens(s)
  local set, tokenizer = {}, s.tokenizer
  local function add(id)
    for _, each in ipairs(type(id) == "table" and id or { id }) do set[each] = true end
  end
  add(tokenizer.eos_token_id)
  add(tokenizer.sep_token_id)
  add((s.template or {}).end_token)
  local model = s.model
  if model then
    add(model.config.eos_token_id)
    add((model.generation_config or {}).eos_token_id)
  end
  for _, token in ipairs(tokenizer.additional_special_tokens) do
    add(tokenizer:convert_tokens_to_ids(token))
  end
  return set
end

--- How the outputs end: for each labelled row whether one of its last three labels ends a text; nil
--- if the rows are pieces of longer texts.
function rows.output_ends(s)
  if not s.labelled then return nil, s:why "labelled" end
  if not s.tokenizer then return nil, s:why "tokenizer" end
  local set, is_ended, longest, n_longest, n_prompts, n_ended = end_tokens(s), {}, 0, 0, 0, 0
  for _, row in ipairs(s.labelled) do
    if row.length > longest then longest, n_longest = row.length, 0 end
    if row.length == longest then n_longest = n_longest + 1 end
  end
  for i, row in ipairs(s.labelled) do
    is_ended[i] = false
    for t = math.max(1, #row.output - 2), #row.output do
      is_ended[i] = is_ended[i] or set[row.output[t]] == true
    end
    if is_ended[i] then n_ended = n_ended + 1 end
    if row.is_written or (row.first_trained or 0) > 1 then n_prompts = n_prompts + 1 end
  end
  local has_prompts = n_prompts > #s.labelled / 2
  if not has_prompts and (n_ended == 0 or n_longest == #s.labelled) then
    return nil, "the rows are pieces of longer texts"
  end
  return { is_ended = is_ended, n_ended = n_ended, longest = longest, n_longest = n_longest,
    has_prompts = has_prompts }
end

return rows
