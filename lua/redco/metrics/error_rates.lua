--- Error rates of transcriptions, as in the package jiwer: the least number of words or characters
--- to replace, insert and delete, over the number in the references.
local fail = require "redco.fail"
local native = require "redco.native"
local registry = require "redco.registry"
local unicode = require "redco.metrics.unicode"

-- Returns the least number of changes between two lists (Levenshtein, 1966).
local function distance(from, to)
  local costs = {}
  for j = 0, #to do costs[j] = j end
  for i = 1, #from do
    local diagonal = costs[0]
    costs[0] = i
    for j = 1, #to do
      local replaced = diagonal + (from[i] == to[j] and 0 or 1)
      diagonal = costs[j]
      costs[j] = math.min(replaced, costs[j] + 1, costs[j - 1] + 1)
    end
  end
  return costs[#to]
end

-- Returns the characters of a text without white space at its ends.
local function characters_of(text)
  local characters, kept = unicode.characters(text), {}
  local last = #characters
  while last > 0 and unicode.is_blank(characters[last]) do last = last - 1 end
  for i = 1, last do
    if #kept > 0 or not unicode.is_blank(characters[i]) then kept[#kept + 1] = characters[i] end
  end
  return kept
end

-- Spaces and runs of white space separate words. A single blank other than a space belongs to its
-- word there.
local function words_of(text)
  local characters, words, is_inside = characters_of(text), {}, false
  for i, character in ipairs(characters) do
    local is_blank = unicode.is_blank(character)
    local is_run = is_blank and (unicode.is_blank(characters[i - 1] or "x")
      or unicode.is_blank(characters[i + 1] or "x"))
    if is_run or character == " " then
      is_inside = false
    else
      words[is_inside and #words or #words + 1] = (is_inside and words[#words] or "") .. character
      is_inside = true
    end
  end
  return words
end

local function check(name, predictions, references)
  if type(predictions) ~= "table" or type(references) ~= "table" or #predictions == 0
    or #predictions ~= #references then
    fail("%s: expected as many predictions as references, and at least one, got %s and %s", name,
      type(predictions) == "table" and #predictions or type(predictions),
      type(references) == "table" and #references or type(references))
  end
  for i, prediction in ipairs(predictions) do
    if type(prediction) ~= "string" or type(references[i]) ~= "string" then
      fail("%s: expected strings, got %s and %s", name,
        native.describe(prediction), native.describe(references[i]))
    end
  end
end

local function rate(name, parts_of)
  return function(predictions, references)
    check(name, predictions, references)
    local n_changes, n_parts = 0, 0
    for i, reference in ipairs(references) do
      local parts = parts_of(reference)
      n_changes = n_changes + distance(parts, parts_of(predictions[i]))
      n_parts = n_parts + #parts
    end
    if n_parts == 0 then fail("%s: the references are empty", name) end
    return n_changes / n_parts
  end
end

return {
  word_error_rate = registry.define("redco.metrics.word_error_rate", [[
word_error_rate(predictions, references) -> number
Returns the least number of words to replace, insert and delete in the predicted texts, over the
number of words in the references: 0 is perfect, and many insertions give more than 1. Case and
punctuation count; words stand between spaces.]], rate("metrics.word_error_rate", words_of)),

  character_error_rate = registry.define("redco.metrics.character_error_rate", [[
character_error_rate(predictions, references) -> number
Returns `word_error_rate` computed over characters in place of words. Spaces are characters.]],
    rate("metrics.character_error_rate", characters_of)),
}
