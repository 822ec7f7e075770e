-- tokenizer_dump.lua TOKENIZER TEXTS OUT: encodes and decodes texts, each of which has its size in
-- four bytes before it, and writes one JSON object a line.
local redco = require "redco"

local path, texts_path, out_path = unpack(arg)
local tokenizer = redco.Tokenizer.from_pretrained(path)
local packed = redco.data.read(texts_path)
local out = assert(io.open(out_path, "wb"))

local function quoted(text)
  return '"' .. text:gsub('[%c"\\\127]', function(c) return ("\\u%04x"):format(c:byte()) end) .. '"'
end

local position = 1
while position <= #packed do
  local a, b, c, d = packed:byte(position, position + 3)
  local size = a + 256 * (b + 256 * (c + 256 * d))
  local text = packed:sub(position + 4, position + 3 + size)
  position = position + 4 + size
  local batch = tokenizer(text, { return_offsets_mapping = true })
  local ids, offsets = batch.input_ids[0]:tolist(), {}
  for i, pair in ipairs(batch.offset_mapping[0]:tolist()) do
    offsets[i] = ("[%d,%d]"):format(pair[1], pair[2])
  end
  out:write(('{"ids":[%s],"offsets":[%s],"decoded":%s}\n'):format(table.concat(ids, ","),
    table.concat(offsets, ","), quoted(tokenizer:decode(ids))))
end
out:close()
