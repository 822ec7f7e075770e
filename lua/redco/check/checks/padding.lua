--- Checks of padding.
local new_tally = require "redco.check.tally"

local function has_label(labels)
  for _, label in ipairs(labels) do
    if label ~= -100 then return true end
  end
  return false
end

local function is_trained(s)
  local tally, rows = new_tally(), s.rows or s.labelled
  for _, row in ipairs(rows) do
    local labels = row.labels_of_padding
    if labels and s.kind ~= "other" and #row.ids > 0 and has_label(labels) then
      tally.add(row.example)
    end
  end
  if s.labelled and s.labelled[1].is_written then
    rows = s.labelled
    for _, row in ipairs(rows) do
      if row.n_padding > 0 then tally.add(row.example) end
    end
  end
  return tally.result(#rows)
end

-- Whether a row has padding at an end that its mask does not leave out.
local function attends_padding(row, pad)
  local ids, mask = row.whole.ids, row.whole.mask
  return mask and (ids[#ids] == pad and mask[#ids] ~= 0 or ids[1] == pad and mask[1] ~= 0)
end

local function is_attended(s)
  local tokenizer, tally = s.tokenizer, new_tally()
  local pad, model = tokenizer.pad_token_id, s.model
  if not pad or pad == tokenizer.eos_token_id or pad == tokenizer.bos_token_id then return nil end
  for _, row in ipairs(s.rows) do
    local is_wrong = row.whole and attends_padding(row, pad)
    if row.whole and not row.has_mask and model then
      is_wrong = row.pads_left > 0 or not model.is_decoder and row.pads_right > 0
    end
    if is_wrong then tally.add(row.example) end
  end
  return tally.result(#s.rows)
end

local function are_empty(s)
  local tally = new_tally()
  for _, row in ipairs(s.rows) do
    if #row.ids == 0 then tally.add(row.example) end
  end
  return tally.result(#s.rows)
end

return {
  { name = "empty_rows", level = "error", title = "rows of padding alone",
    advice = "leave out empty texts", needs = { "rows" }, find = are_empty },
  { name = "padding_trained", level = "error", title = "rows whose padding is trained",
    advice = "set the labels of padding to -100, as redco.data.padding_collate does",
    needs = { "labelled", "takes_labels" }, find = is_trained },
  { name = "padding_attended", level = "error", title = "rows whose padding is attended to",
    advice = "give the model an attention_mask that is 0 there; the tokenizer's call returns it",
    needs = { "rows", "tokenizer" }, find = is_attended },
}
