--- Checks of conversations.
local decoded = require "redco.check.decoded"
local new_tally = require "redco.check.tally"
local is_in = require("redco.check.template").is_in

-- Beginnings of prompts in texts without a chat template.
local plain_headers = { "### Instruction:", "### Input:", "### User:", "### Human:", "\nUser:",
  "\nHuman:", "\nQuestion:" }

local function has_prompt(s, ids)
  if s.template and is_in(s.template.user, s.tokenizer, ids) then return true end
  local text = decoded(s.tokenizer, ids)
  for _, header in ipairs(plain_headers) do
    if text:find(header, 1, true) then return true end
  end
  return false
end

-- The first token and those that labels train.
local function trained_tokens(row)
  local ids = row.labels[1] ~= -100 and { row.ids[1] } or {}
  for _, label in ipairs(row.output) do ids[#ids + 1] = label end
  return ids
end

local function train_prompts(s)
  if s.kind == "next" and s.distance == 0 then return nil end  -- labels_equal_inputs reports it
  local tally, of = new_tally(), 0
  for _, row in ipairs(s.labelled) do
    if row.ids and has_prompt(s, row.ids) then
      of = of + 1
      if has_prompt(s, trained_tokens(row)) then tally.add(row.example) end
    end
  end
  if of < #s.labelled / 2 then return nil end
  return tally.result(of)
end

-- redco.data.conversations raises an error if it cannot mask, so its data sets are masked.
local function cannot_mask(s)
  if not s.template.refusal or #s.made.conversations > 0 then return nil end
  local count = 0
  for _, row in ipairs(s.rows) do
    if is_in(s.template.assistant, s.tokenizer, row.ids) then count = count + 1 end
  end
  return count, #s.rows, s.template.refusal
end

-- Records that redco.data.conversations and preferences left out.
local function are_left_out(s)
  local too_long, invalid, same, of = 0, 0, 0, 0
  for _, set in ipairs(s.made.conversations) do
    local statistics = set.statistics
    too_long, invalid = too_long + statistics.too_long, invalid + statistics.invalid
    same = same + (statistics.same or 0)
    of = of + statistics.count
  end
  local count = too_long + invalid + same
  of = of + count
  if invalid + same <= 0.01 * of and too_long <= 0.75 * of then return nil end
  return count, of, ("%d are too long, %d invalid%s"):format(too_long, invalid,
    same > 0 and (", %d have two equal answers"):format(same) or "")
end

local function have_same_answers(s)
  local tally, of, before = new_tally(), 0, {}
  for _, row in ipairs(s.rows) do
    local text = table.concat(row.ids, " ")
    if before.example == row.example and before.batch == row.batch then
      of = of + 1
      if before.text == text then tally.add(row.example) end
    end
    before = { example = row.example, batch = row.batch, text = text }
  end
  return tally.result(of)
end

local function are_pairs(s)
  for _, each in ipairs(s.batches) do
    if each.batch.input_ids:dim() ~= 3 then return false end
  end
  return true
end

return {
  { name = "prompts_trained", level = "warning", title = "rows that train what the user says",
    advice = "redco.data.conversations sets the labels of prompts to -100",
    needs = { "labelled", "tokenizer" }, find = train_prompts },
  { name = "template_cannot_mask", level = "warning",
    title = "conversations whose chat template cannot mask prompts",
    advice = "set tokenizer.chat_template to one with {% generation %} marks",
    needs = { "rows", "template" }, find = cannot_mask },
  { name = "left_out", level = "warning", title = "conversations or pairs that are left out",
    advice = "raise max_length, or mend the records", find = are_left_out },
  { name = "same_answers", level = "error", title = "pairs whose two answers are the same",
    advice = "leave them out: they teach nothing", needs = { "rows" },
    find = function(s) return are_pairs(s) and have_same_answers(s) or nil end },
}
