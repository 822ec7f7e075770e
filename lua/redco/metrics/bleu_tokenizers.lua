--- The tokenizers of sacrebleu 2.6.0 that need no model: functions from a text to its words. The
--- text must have plain blanks only, and none at its end.
local unicode = require "redco.metrics.unicode"

local tokenizers = { none = unicode.split }

function tokenizers.char(text)
  return unicode.split(table.concat(unicode.characters(text), " "))
end

-- Replaced in this order, so that "&amp;lt;" becomes "<".
local entities = { { "&quot;", '"' }, { "&amp;", "&" }, { "&lt;", "<" }, { "&gt;", ">" } }

--- The tokenizer of the WMT evaluations (mteval-v13a.pl). It separates punctuation, except points
--- and commas inside numbers, dashes and apostrophes.
tokenizers["13a"] = function(text)
  text = text:gsub("<skipped>", ""):gsub("%-\n", ""):gsub("\n", " ")
  for _, entity in ipairs(entities) do text = text:gsub(entity[1], entity[2]) end
  text = (" " .. text .. " "):gsub("[{-~[-` -&(-+:-@/]", " %0 ")
    :gsub("([^0-9])([.,])", "%1 %2 "):gsub("([.,])([^0-9])", " %1 %2"):gsub("([0-9])-", "%1 - ")
  return unicode.split(text)
end

-- Where to insert blanks around characters of matching classes: before, between, after.
local international_rules = {
  { "()[^N]P()", "", " ", " " },
  { "()P[^N]()", " ", " ", "" },
  { "()S()", " ", "", " " },
}

--- The tokenizer of mteval-v14.pl. It separates symbols, and punctuation that is not between
--- numbers.
function tokenizers.intl(text)
  local characters = unicode.characters(text)
  for _, rule in ipairs(international_rules) do
    local classes = {}
    for i, character in ipairs(characters) do classes[i] = unicode.class(character) end
    local spaced, done = {}, 0
    local pattern, before, between, after = unpack(rule)
    for first, past in table.concat(classes):gmatch(pattern) do
      spaced[#spaced + 1] = table.concat(characters, "", done + 1, first - 1) .. before
        .. table.concat(characters, between, first, past - 1) .. after
      done = past - 1
    end
    spaced[#spaced + 1] = table.concat(characters, "", done + 1)
    characters = unicode.characters(table.concat(spaced))
  end
  return unicode.split(table.concat(characters))
end

return tokenizers
