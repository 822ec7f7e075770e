--- Unicode functions for the text metrics, on UTF-8 strings, with the results of Python's str. A
--- byte that is not UTF-8 is a separate character or part of the one before.
---
--- They know the characters of Unicode 15.0 (utf8proc 2.8), as Python 3.12 does. Python 3.11 knows
--- those of 14.0, and the package regex, with which sacrebleu finds punctuation, has tables of its
--- own. Results differ only for texts with characters that one of them does not know.
local native = require "redco.native"

local unicode = {}

local beyond_ascii = "[\194-\244][\128-\191]+"

--- Returns the text in lower case.
unicode.lower = native.lower_case

function unicode.characters(text)
  local characters = {}
  for character in text:gmatch ".[\128-\191]*" do characters[#characters + 1] = character end
  return characters
end

--- Returns the first letter of the character's category in Unicode: "L" for a letter, "M" for a
--- mark, "N" for a number, "P" for punctuation, "S" for a symbol, "Z" for a blank, "C" for others.
function unicode.class(character)
  return native.general_category(character):sub(1, 1)
end

--- Returns whether a character is white space for Python.
function unicode.is_blank(character)
  return character:find "^[%s\28-\31]$" ~= nil or character == "\194\133"
    or character:find(beyond_ascii) == 1 and unicode.class(character) == "Z"
end

--- Replaces every non-ASCII character that is white space for Python's split by a blank.
function unicode.plain_blanks(text)
  return (text:gsub("[\194\225\226\227][\128-\191]+", function(character)
    return unicode.is_blank(character) and " " or nil
  end))
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

return unicode
