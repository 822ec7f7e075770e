--- Texts as Python's str and re treat them.
local native = require "redco.native"
local unicode = require "redco.metrics.unicode"

local python_text = {}

-- Returns the last byte of the character that contains byte i, or the first with `step` = -1.
local function edge(text, i, step)
  local next_byte = text:byte(step > 0 and i + 1 or i)
  while next_byte and next_byte >= 128 and next_byte < 192 do
    i = i + step
    next_byte = text:byte(step > 0 and i + 1 or i)
  end
  return i
end

--- Splits off the white space at the end: returns the text before it, and it.
function python_text.split_end(text)
  local last = #text
  while last > 0 do
    local first = edge(text, last, -1)
    if not unicode.is_blank(text:sub(first, last)) then break end
    last = first - 1
  end
  return text:sub(1, last), text:sub(last + 1)
end

--- `text.strip()`
function python_text.strip(text)
  text = python_text.split_end(text)
  local first = 1
  while first <= #text do
    local last = edge(text, first, 1)
    if not unicode.is_blank(text:sub(first, last)) then break end
    first = last + 1
  end
  return text:sub(first)
end

--- `len(text)`
function python_text.length(text) return select(2, text:gsub("[^\128-\191]", "")) end

--- `re.sub(expression, "", text)`
function python_text.without(text, expression)
  local parts, from = {}, 1
  for _, match in ipairs(native.find_matches(expression, text)) do
    parts[#parts + 1] = text:sub(from, match[1] - 1)
    from = match[2] + 1
  end
  parts[#parts + 1] = text:sub(from)
  return table.concat(parts)
end

--- `re.findall(expression, text)`: of each match its groups, or the whole of it without groups.
function python_text.find_all(expression, text)
  local found = native.find_matches(expression, text)
  for i, match in ipairs(found) do
    found[i] = #match.groups > 0 and match.groups or { text:sub(match[1], match[2]) }
  end
  return found
end

--- `len(re.split(r"\s+", text))`
function python_text.count_words(text) return #native.find_matches("\\s+", text) + 1 end

return python_text
