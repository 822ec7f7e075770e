-- json_schema.lua SOURCE FILE OUTPUT SEED: for each line of FILE, with a `schema` and `documents`,
-- writes which documents its grammar accepts, and texts that follow it at random.
local redco = require "redco"
local native = require "redco.native"
local texts_of = require "redco.generation.grammar".texts_of

local source, input, output, seed = unpack(arg)
math.randomseed(tonumber(seed))

-- Each byte is a token here.
local tokenizer = redco.Tokenizer.from_pretrained(source .. "/tests/cases/llama")
local texts, token_of, byte_of = texts_of(tokenizer), {}, {}
for token = 0, #tokenizer - 1 do
  local bytes = texts:bytes(token)
  if #bytes == 1 and not token_of[bytes] then token_of[bytes], byte_of[token] = token, bytes end
end

local function is_accepted(grammar, text)
  local ids = {}
  for i = 1, #text do ids[i] = token_of[text:sub(i, i)] end
  local _, _, is_complete = grammar:after(ids, #tokenizer)
  return is_complete == true
end

-- Ends are likelier than other characters, and blanks are rare: the texts would be long.
local function weight_of(byte)
  if byte:find '[]}"]' then return 8 end
  if byte:find "[%s\\]" then return 0.05 end
  return byte:find "[\128-\255]" and 0.1 or 1
end

-- A random text of the grammar, or nil if it gets too long.
local function write(grammar)
  local ids, text = {}, {}
  for n = 1, 300 do
    local allowed, has_any, is_complete = grammar:after(ids, #tokenizer)
    if is_complete and (not has_any or math.random() < 0.7) then return table.concat(text) end
    local options, total = {}, 0
    for i, may_follow in ipairs(allowed:tolist()) do
      local byte = (may_follow == true or may_follow == 1) and byte_of[i - 1]
      if byte then
        total = total + weight_of(byte)
        options[#options + 1] = { total, i - 1, byte }
      end
    end
    local place = math.random() * total
    for _, option in ipairs(options) do
      if place <= option[1] then
        ids[n], text[n] = option[2], option[3]
        break
      end
    end
  end
end

local lines = {}
for _, case in redco.data.jsonl(input):ipairs() do
  local row = { texts = {}, is_accepted = {} }
  local is_fine, grammar = pcall(native.token_grammar, "schema", texts,
    { { schema = native.json_decode("schema", case.schema) } })
  if is_fine then
    for i, text in ipairs(case.documents) do row.is_accepted[i] = is_accepted(grammar, text) end
    for _ = 1, 6 do row.texts[#row.texts + 1] = write(grammar) end
  else
    row = { error = tostring(grammar) }
  end
  lines[#lines + 1] = native.json_encode("row", row)
end
local file = assert(io.open(output, "w"))
file:write(table.concat(lines, "\n"), "\n")
file:close()
