--- Unicode functions for the text metrics, on UTF-8 strings, with the results of Python's str. A
--- byte that is not UTF-8 is a separate character or part of the one before.
local tables = require "redco.metrics.unicode_tables"

local unicode = {}

local function utf8(code)
  if code < 0x80 then return string.char(code) end
  if code < 0x800 then return string.char(0xC0 + math.floor(code / 64), 0x80 + code % 64) end
  local last_two = string.char(0x80 + math.floor(code / 64) % 64, 0x80 + code % 64)
  if code < 0x10000 then return string.char(0xE0 + math.floor(code / 4096)) .. last_two end
  return string.char(0xF0 + math.floor(code / 262144), 0x80 + math.floor(code / 4096) % 64)
    .. last_two
end

-- A map from characters beyond ASCII to lower case.
local lower_of = { [utf8(0x130)] = "i" .. utf8(0x307) }
for _, run in ipairs(tables.lower) do
  for code = run[1], run[2], run[3] do
    lower_of[utf8(code)] = utf8(code + run[4])
  end
end

local beyond_ascii = "[\194-\244][\128-\191]+"

-- Sets the characters in a list of ranges to a value; returns the map.
local function set(map, ranges, value)
  for _, range in ipairs(ranges) do
    for code = range[1], range[2] do map[utf8(code)] = value end
  end
  return map
end

local capital_sigma, final_sigma = utf8(0x3A3), utf8(0x3C2)
local is_cased, is_skipped

local function has_letter_before(text, first)
  local character
  repeat
    local near = text:sub(math.max(first - 4, 1), first - 1)
    character = near:match "[^\128-\191][\128-\191]*$" or ""
    first = first - #character
  until not is_skipped[character]
  return is_cased[character]
end

local function has_letter_after(text, past)
  local character
  repeat
    character = text:match("^.[\128-\191]*", past) or ""
    past = past + #character
  until not is_skipped[character]
  return is_cased[character]
end

--- A capital sigma at the end of a word has a special lower case: a letter is before it and none
--- after it. Characters that Unicode calls Case_Ignorable are skipped (The Unicode Standard, 3.13).
local function lower_final_sigmas(text)
  is_cased = is_cased or set({}, tables.cased, true)
  is_skipped = is_skipped or set({}, tables.case_ignorable, true)
  return (text:gsub("()" .. capital_sigma .. "()", function(first, past)
    if has_letter_before(text, first) and not has_letter_after(text, past) then
      return final_sigma
    end
  end))
end

function unicode.lower(text)
  if text:find(capital_sigma, 1, true) then text = lower_final_sigmas(text) end
  text = text:lower()
  return text:find "[\194-\244]" and (text:gsub(beyond_ascii, lower_of)) or text
end

function unicode.characters(text)
  local characters = {}
  for character in text:gmatch ".[\128-\191]*" do characters[#characters + 1] = character end
  return characters
end

local other_blanks = {}
for _, code in ipairs { 0x85, 0xA0, 0x1680, 0x2028, 0x2029, 0x202F, 0x205F, 0x3000 } do
  other_blanks[utf8(code)] = " "
end
for code = 0x2000, 0x200A do other_blanks[utf8(code)] = " " end

--- Returns whether a character is white space for Python.
function unicode.is_blank(character)
  return other_blanks[character] ~= nil or character:find "^[%s\28-\31]$" ~= nil
end

--- Replaces every non-ASCII character that is white space for Python's split by a blank.
function unicode.plain_blanks(text)
  return text:find "[\194\225\226\227]" and (text:gsub(beyond_ascii, other_blanks)) or text
end

--- Splits a text with plain blanks at white space.
function unicode.split(text)
  local words = {}
  for word in text:gmatch "[^%s\28-\31]+" do words[#words + 1] = word end
  return words
end

--- Removes white space at the end of a text with plain blanks.
function unicode.strip_end(text)
  return text:match "^.*[^%s\28-\31]" or ""
end

local class_of
local function read_classes()
  class_of = {}
  for letter, ranges in pairs { P = tables.punctuation, S = tables.symbols, N = tables.numbers,
    M = tables.marks, C = tables.controls } do
    set(class_of, ranges, letter)
  end
  for byte = 0, 127 do
    local character = string.char(byte)
    class_of[character] = character:find "%d" and "N" or character:find "[$+<=>^`|~]" and "S"
      or character:find "%p" and "P" or nil
  end
end

--- Returns "P" for punctuation, "S" for a symbol, "N" for a number, "M" for a combining mark, "C"
--- for a control or format character beyond ASCII (Unicode's categories), else "-".
function unicode.class(character)
  if not class_of then read_classes() end
  return class_of[character] or "-"
end

return unicode
