--- Checks of examples that are there more than once.
local fingerprint = require "redco.check.fingerprint"
local new_tally = require "redco.check.tally"

local seconds, share = 3, 0.01  -- reading time; the share of examples that may be equal

-- Returns the fingerprints of the examples that can be read in time; none if all examples are
-- numbers, which stand for data elsewhere.
local function prints_of(examples)
  local prints, started, are_numbers = {}, os.clock(), true
  for i = 1, examples.count do
    local example = examples.at(i)
    are_numbers = are_numbers and type(example) == "number"
    prints[i] = fingerprint(example)
    if os.clock() - started > seconds then break end
  end
  return not are_numbers and prints or {}
end

local known = setmetatable({}, { __mode = "k" })
local function prints(examples)
  known[examples] = known[examples] or prints_of(examples)
  return known[examples]
end

-- Whether all examples are equal but the batches differ: then collate_fn has the data.
local function are_placeholders(s, list)
  for i = 2, #list do
    if list[i] ~= list[1] then return false end
  end
  for b = 2, #(s.batches or {}) do
    if fingerprint(s.batches[b].batch) ~= fingerprint(s.batches[1].batch) then return true end
  end
  return false
end

local function are_twice(s)
  local list, tally, is_seen = prints(s.examples), new_tally(), {}
  for i, print in ipairs(list) do
    if is_seen[print] then tally.add(i) end
    is_seen[print] = true
  end
  local count, of, where = tally.result(#list)
  if not count or count <= share * of or are_placeholders(s, list) then return nil end
  return count, of, where
end

local function count_known(s)
  local list, is_known, tally = prints(s.evaluation), {}, new_tally()
  for _, print in ipairs(prints(s.examples)) do is_known[print] = true end
  for i, print in ipairs(list) do
    if is_known[print] then tally.add(i) end
  end
  return tally.result(#list)
end

local function is_the_same(s)
  local count, of = count_known(s)
  return count and count == of and count or nil, of
end

local function are_known(s)
  local count, of, where = count_known(s)
  if not count or count == of or count <= share * of then return nil end
  return count, of, where
end

-- Splits an example into the fingerprints of its inputs and of its label; nil without one.
local function split(example)
  if type(example) ~= "table" then return nil end
  local inputs, label = {}, nil
  for key, value in pairs(example) do
    if key == "label" or key == "class" or key == "target" and type(value) == "number" then
      label = fingerprint(value)
    else
      inputs[key] = value
    end
  end
  return next(inputs) ~= nil and fingerprint(inputs) or nil, label
end

local function contradict(s)
  local tally, labels, started, of = new_tally(), {}, os.clock(), 0
  for i = 1, s.examples.count do
    local inputs, label = split(s.examples.at(i))
    if not inputs or not label then return nil end
    if labels[inputs] and labels[inputs] ~= label then tally.add(i) end
    labels[inputs], of = labels[inputs] or label, i
    if os.clock() - started > seconds then break end
  end
  local count, _, where = tally.result(of)
  if not count or count <= share * of then return nil end
  return count, of, where
end

return {
  { name = "duplicates", level = "warning", title = "training examples that are there before",
    advice = "remove copies, or they count more than others", needs = { "examples" },
    find = are_twice },
  { name = "contradictions", level = "warning",
    title = "training examples with the inputs of another one and another label",
    advice = "no model can learn both: choose one label", needs = { "examples" },
    find = contradict },
  { name = "evaluation_is_training", level = "error",
    title = "evaluation examples that are all training examples",
    advice = "hold examples out: train, held_out = redco.data.split(all, { every = 10 })",
    needs = { "examples", "evaluation" }, find = is_the_same },
  { name = "evaluation_in_training", level = "warning",
    title = "evaluation examples that are also training examples",
    advice = "remove them from one of both: what was learned by heart says little",
    needs = { "examples", "evaluation" }, find = are_known },
}
