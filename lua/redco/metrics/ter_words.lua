--- The words of a text for TER, as Tercom's normalizer and sacrebleu 2.6.0 separate them.
local unicode = require "redco.metrics.unicode"

-- First and last code points.
local asian_punctuation = { { 0x3001, 0x3002 }, { 0x3008, 0x3011 }, { 0x3014, 0x301F },
  { 0x30FB, 0x30FB }, { 0xFF01, 0xFF02 }, { 0xFF08, 0xFF09 }, { 0xFF0C, 0xFF0C },
  { 0xFF0E, 0xFF0E }, { 0xFF1A, 0xFF1B }, { 0xFF1F, 0xFF1F }, { 0xFF61, 0xFF65 } }
local asian_words = { { 0x2E80, 0x2EFF }, { 0x31C0, 0x31EF }, { 0x3200, 0x4DBF },
  { 0x4E00, 0x9FFF }, { 0xF900, 0xFAFF }, { 0xFE30, 0xFE4F } }

-- Puts `around` at both sides of the characters in `ranges`; nil removes them.
local function replace(text, ranges, around)
  return (text:gsub("[\226-\239][\128-\191][\128-\191]", function(character)
    local a, b, c = character:byte(1, 3)
    local code = (a - 0xE0) * 4096 + (b - 0x80) * 64 + (c - 0x80)
    for _, range in ipairs(ranges) do
      if code >= range[1] and code <= range[2] then
        return around and around .. character .. around or ""
      end
    end
  end))
end

local function strip_end(text)
  local characters = unicode.characters(text)
  local last = #characters
  while last > 0 and unicode.is_blank(characters[last]) do last = last - 1 end
  return table.concat(characters, "", 1, last)
end

local function normalize(text)
  text = text:gsub("\n%-", ""):gsub("\n", " "):gsub("&quot;", '"'):gsub("&amp;", "&")
    :gsub("&lt;", "<"):gsub("&gt;", ">")
  return ((" " .. text .. " "):gsub("[{-~[-` -&(-+:-@/]", " %0 "):gsub("'s ", " 's ")
    :gsub("([^0-9])([.,])", "%1 %2 "):gsub("([.,])([^0-9])", " %1 %2"):gsub("([0-9])-", "%1 - "))
end

return function(text, o)
  text = strip_end(text)
  if not o.case_sensitive then text = unicode.lower(text) end
  if o.normalized then
    text = normalize(text)
    if o.asian_support then
      text = replace(replace(text, asian_words, " "), asian_punctuation, " ")
    end
  end
  if o.no_punct then
    text = text:gsub('[.,?:;!"()]', "")
    if o.asian_support then text = replace(text, asian_punctuation) end
  end
  return unicode.split(unicode.plain_blanks(text))
end
