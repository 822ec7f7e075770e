--- Texts in image files: of PNG iTXt chunks, which are UTF-8, and of JPEG a comment.
local bit = require "bit"
local fail = require "redco.fail"
local native = require "redco.native"

local table_of_crc = {}
for n = 0, 255 do
  local c = n
  for _ = 1, 8 do
    c = bit.band(c, 1) == 1 and bit.bxor(0xEDB88320, bit.rshift(c, 1)) or bit.rshift(c, 1)
  end
  table_of_crc[n] = c
end

local function crc(bytes)
  local c = -1
  for i = 1, #bytes do
    c = bit.bxor(table_of_crc[bit.band(bit.bxor(c, bytes:byte(i)), 255)], bit.rshift(c, 8))
  end
  return bit.bnot(c)
end

local function big_endian(n)
  return string.char(bit.band(bit.rshift(n, 24), 255), bit.band(bit.rshift(n, 16), 255),
    bit.band(bit.rshift(n, 8), 255), bit.band(n, 255))
end

local function chunk(keyword, text)
  local body = "iTXt" .. keyword .. "\0\0\0\0\0" .. text
  return big_endian(#body - 4) .. body .. big_endian(crc(body))
end

-- The files with texts, {{keyword, text}, ...}, by format.
local writers = {}

function writers.png(_, bytes, texts)
  local header_length = 8 + 25  -- the signature, and the chunk IHDR
  local chunks = {}
  for i, row in ipairs(texts) do chunks[i] = chunk(row[1], row[2]) end
  return bytes:sub(1, header_length) .. table.concat(chunks) .. bytes:sub(header_length + 1)
end

function writers.jpeg(where, bytes, texts)
  local lines = {}
  for i, row in ipairs(texts) do lines[i] = row[1] .. ": " .. row[2] end
  local comment = table.concat(lines, "\n")
  if #comment > 65533 then
    fail("%s: metadata: a JPEG file has room for 65533 bytes, not %d", where, #comment)
  end
  local start = bytes:sub(1, 2)  -- the comment follows the start marker
  return start .. "\255\254" .. big_endian(#comment + 2):sub(3) .. comment .. bytes:sub(3)
end

--- Returns the bytes of a file with texts by keyword, of 1 to 79 ASCII characters. `form` is "png"
--- or "jpeg".
return function(where, bytes, texts, form)
  local rows = {}
  for keyword, text in pairs(texts) do
    if type(keyword) ~= "string" or not keyword:find "^[!-~][ -~]*$" or #keyword > 79
      or keyword:find " $" then
      fail("%s: metadata: expected a keyword of 1 to 79 ASCII characters, got '%s'", where,
        keyword)
    end
    if type(text) ~= "string" and type(text) ~= "number" then
      fail("%s: metadata.%s: expected a string, got %s", where, keyword, native.describe(text))
    end
    rows[#rows + 1] = { keyword, tostring(text) }
  end
  table.sort(rows, function(a, b) return a[1] < b[1] end)
  return writers[form](where, bytes, rows)
end
