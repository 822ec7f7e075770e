-- gguf_tokenizers.lua FILE.gguf...: compares the tokens of the texts in FILE.gguf.inp with the
-- numbers in FILE.gguf.out.
local redco = require "redco"

local separator = "\n__ggml_vocab_test__\n"

local function texts_of(path)
  local file = assert(io.open(path, "rb"))
  local all = file:read "*a"
  file:close()
  local texts, start = {}, 1
  while true do
    local first, last = all:find(separator, start, true)
    if not first then break end
    texts[#texts + 1], start = all:sub(start, first - 1), last + 1
  end
  return texts
end

local n_texts, n_wrong = 0, 0
for _, path in ipairs(arg) do
  local tokenizer, texts, i = redco.Tokenizer.from_pretrained(path), texts_of(path .. ".inp"), 0
  for line in io.lines(path .. ".out") do
    i = i + 1
    local expected = line:gsub("^ +", "")
    local ids = tokenizer:encode(texts[i] or "", { add_special_tokens = false })
    local given = table.concat(ids, " ")
    if not texts[i] or given ~= expected then
      n_wrong = n_wrong + 1
      print(("%s: %q is %s, expected %s"):format(path, tostring(texts[i]), given, expected))
    end
    n_texts = n_texts + 1
  end
end
print(("%d texts with %d vocabularies, %d of them differ"):format(n_texts, #arg, n_wrong))
os.exit(n_wrong == 0 and 0 or 1)
