--- Checks of the labels of texts.
local new_tally = require "redco.check.tally"

local function are_untrained(s)
  local tally = new_tally()
  for _, row in ipairs(s.labelled) do
    local is_single = row.ids and #row.ids == 1  -- nothing follows it
    if #row.output == 0 and not is_single then tally.add(row.example) end
  end
  return tally.result(#s.labelled)
end

-- Whether each label of a row is the token at its own position.
local function is_copy(row)
  local count = 0
  for t, label in ipairs(row.given) do
    if label ~= -100 then
      if label ~= row.ids[t] then return false end
      count = count + 1
    end
  end
  return count > 0
end

local function equal_inputs(s)
  if s.kind == "own" or s.distance ~= 0 or s.model.is_encoder_decoder then return nil end
  local tally = new_tally()
  for _, row in ipairs(s.rows) do
    if row.given and is_copy(row) then tally.add(row.example) end
  end
  return tally.result(#s.rows)
end

local function are_far(s)
  local distance = s.distance
  if s.kind ~= "next" or not distance or distance == 0 or distance == 1 then return nil end
  local tally = new_tally()
  for _, row in ipairs(s.labelled) do tally.add(row.example) end
  local count, of, where = tally.result(#s.labelled)
  return count, of, (distance > 1 and "the label is the token after the next one; "
    or "the label is the token before; ") .. where
end

-- Finds labels that are next tokens already, although the loss shifts them again.
local function are_shifted_twice(s)
  if s.kind ~= "own" or s.distance ~= 1 then return nil end
  return #s.labelled, #s.labelled
end

return {
  { name = "untrained_rows", level = "error", title = "rows without a trained token",
    advice = "leave them out, or find out why all of their labels are -100",
    needs = { "labelled" }, find = are_untrained },
  { name = "labels_equal_inputs", level = "error",
    title = "rows whose labels equal their inputs: the model learns to copy",
    advice = "labels are the next tokens, as of redco.data.conversations, pack and shift = true of "
      .. "model.loss; of an encoder mask tokens in input_ids",
    needs = { "rows", "model", "takes_labels" }, find = equal_inputs },
  { name = "labels_shifted", level = "error", title = "rows whose labels are not the next tokens",
    advice = "shift labels once: labels[t] = input_ids[t + 1]",
    needs = { "rows", "labelled" }, find = are_far },
  { name = "labels_shifted_twice", level = "error",
    title = "rows whose labels are next tokens already, though the loss has shift = true",
    advice = "leave shift out", needs = { "rows", "labelled" }, find = are_shifted_twice },
}
