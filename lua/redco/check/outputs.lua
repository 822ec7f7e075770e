--- Which tokens of sequences are trained, and how they end.
local model_loss = require "redco.check.model_loss"
local rows = require "redco.check.rows"

local outputs = {}

local ignored = -100

-- Returns the rows of labels that an encoder-decoder learns to write.
local function written(s)
  local list = {}
  local pad = s.tokenizer and s.tokenizer.pad_token_id
  local is_shared = pad ~= nil and pad == s.tokenizer.eos_token_id
  for _, each in ipairs(s.batches) do
    for i, labels in ipairs(rows.lists_of(each.batch.labels) or {}) do
      local output, n_padding = {}, 0
      labels = model_loss.without_ignored(s, labels)
      for _, label in ipairs(labels) do
        if label ~= ignored then output[#output + 1] = label end
      end
      while output[#output] == pad and pad and (not is_shared or output[#output - 1] == pad) do
        output[#output], n_padding = nil, n_padding + 1
      end
      list[#list + 1] = { output = output, n_padding = n_padding,
        example = each.examples[i] or each.examples[1], is_written = true, length = #output }
    end
  end
  if #list == 0 then return nil, "the batches have no labels [batch, length]" end
  return list
end

--- The rows with what is trained of each: `output`, its labels other than -100. Those of an
--- encoder-decoder have no ids.
function outputs.labelled(s)
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
function outputs.ends(s)
  if not s.labelled then return nil, s:why "labelled" end
  if not s.tokenizer then return nil, s:why "tokenizer" end
  if s.sampler then return nil, "a sampler writes the examples" end
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

return outputs
