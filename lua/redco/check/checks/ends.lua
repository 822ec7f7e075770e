--- Checks of the first and the last tokens of texts.
local new_tally = require "redco.check.tally"
local is_in = require("redco.check.template").is_in

local function has_doubled_bos(s)
  local bos, tally = s.tokenizer.bos_token_id, new_tally()
  if not bos then return nil end
  for _, row in ipairs(s.rows) do
    if row.ids[1] == bos and row.ids[2] == bos then tally.add(row.example) end
  end
  local count, of, where = tally.result(#s.rows)
  -- A row cut from joined texts may begin with the end of one text and the start of the next.
  if count and bos == s.tokenizer.eos_token_id and count < of / 2 then return nil end
  return count, of, where
end

-- The token with which texts begin: the chat template's first token if the template wrote the rows.
local function expected_first(s)
  local template, row = s.template, s.rows[1]
  if template and is_in(template.assistant, s.tokenizer, row.ids) then
    return template.first_token
  end
  return s.tokenizer:encode "a"[1]
end

-- Rows without BOS, if it is expected and these rows begin texts.
local function lacks_bos(s)
  local bos, tally, n_with = s.tokenizer.bos_token_id, new_tally(), 0
  if not bos or expected_first(s) ~= bos then return nil end
  for _, row in ipairs(s.rows) do
    if row.ids[1] == bos then
      n_with = n_with + 1
    elseif row.ids[1] then
      tally.add(row.example)
    end
  end
  if n_with == 0 and not s.output_ends then return nil end  -- pieces of longer texts
  return tally.result(#s.rows)
end

-- A single trained token needs no end: it may be the letter of a choice, for example.
local function lacks_end(s, i)
  return #s.labelled[i].output > 1 and not s.output_ends.is_ended[i]
end

-- Whether row i is cut: it has the greatest length, as do other rows, and lacks the end.
local function is_cut(s, i)
  local ends, row = s.output_ends, s.labelled[i]
  return row.length == ends.longest and ends.n_longest > 1 and not row.is_packed
    and lacks_end(s, i)
end

local function are_cut(s)
  local ends, tally = s.output_ends, new_tally()
  if ends.n_ended == 0 then return nil end
  for i, row in ipairs(s.labelled) do
    if is_cut(s, i) then tally.add(row.example) end
  end
  return tally.result(#s.labelled)
end

local function lack_end(s)
  local ends, tally = s.output_ends, new_tally()
  for i, row in ipairs(s.labelled) do
    if lacks_end(s, i) and not (ends.n_ended > 0 and is_cut(s, i)) then
      tally.add(row.example)
    end
  end
  return tally.result(#s.labelled)
end

local function have_doubled_eos(s)
  local eos, tally = s.tokenizer.eos_token_id, new_tally()
  if not eos or eos == s.tokenizer.pad_token_id then return nil end
  for _, row in ipairs(s.labelled) do
    local n = #row.output
    if row.output[n] == eos and row.output[n - 1] == eos then tally.add(row.example) end
  end
  return tally.result(#s.labelled)
end

return {
  { name = "doubled_bos", level = "error", title = "rows that begin with two BOS tokens",
    advice = "a chat template often writes BOS: encode its text with add_special_tokens = false",
    needs = { "rows", "tokenizer" }, find = has_doubled_bos },
  { name = "missing_bos", level = "warning", title = "rows without the BOS with which texts begin",
    advice = "encode texts with add_special_tokens = true, or by the chat template",
    needs = { "rows", "tokenizer" }, find = lacks_bos },
  { name = "missing_eos", level = "error",
    title = "rows in which nothing trained ends the text: the model would not learn to stop",
    advice = "append the tokenizer's eos_token, or the token that ends a turn, and train it",
    needs = { "labelled", "tokenizer", "output_ends" }, find = lack_end },
  { name = "doubled_eos", level = "warning", title = "rows that end in two EOS tokens",
    advice = "the tokenizer appends EOS itself, or the text has it already",
    needs = { "labelled", "tokenizer" }, find = have_doubled_eos },
  { name = "cut_ends", level = "warning",
    title = "rows at the length limit that are cut: their end is missing",
    advice = "raise the limit, or leave such examples out: truncation = \"drop\" of "
      .. "redco.data.conversations",
    needs = { "labelled", "tokenizer", "output_ends" }, find = are_cut },
}
