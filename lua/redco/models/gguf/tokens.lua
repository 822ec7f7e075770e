--- The special tokens of a GGUF file's vocabulary.
local json = require "redco.models.json"

local tokens = {}

-- Tokens that end a text or a turn if a vocabulary has them, as in llama.cpp.
local ends = {}
for _, token in ipairs { "</s>", "<EOT>", "<end_of_turn>", "<|call|>", "<|end_of_text|>", "<|end|>",
  "<|endoftext|>", "<|eom_id|>", "<|eot_id|>", "<|im_end|>", "<|return|>" } do
  ends[token] = true
end

-- Returns the number of a token. Two have a fixed place in a SentencePiece vocabulary.
local function token_of(metadata, role, default)
  local is_fixed = metadata["tokenizer.ggml.model"] == "llama"
    and default < #(metadata["tokenizer.ggml.tokens"] or {})
  return metadata["tokenizer.ggml." .. role .. "_token_id"] or is_fixed and default or nil
end

-- Returns the end tokens: a number, a list, or nil. Tokens that the file names come first.
local function ends_of(metadata)
  local list, is_listed = {}, {}
  local function add(id)
    if id and not is_listed[id] then list[#list + 1], is_listed[id] = id, true end
  end
  add(token_of(metadata, "eos", 2))
  add(metadata["tokenizer.ggml.eot_token_id"])
  add(metadata["tokenizer.ggml.eom_token_id"])
  for i, token in ipairs(metadata["tokenizer.ggml.tokens"] or {}) do
    if ends[token] then add(i - 1) end
  end
  return #list > 1 and list or list[1]
end

--- Sets the numbers of the tokens in the configuration `c`, null where the file has none.
function tokens.set(metadata, c)
  c.bos_token_id = token_of(metadata, "bos", 1)
  c.eos_token_id = ends_of(metadata)
  c.pad_token_id = metadata["tokenizer.ggml.padding_token_id"]
  for _, role in ipairs { "bos", "eos", "pad" } do
    local key = role .. "_token_id"
    if c[key] == nil then json.set_null(c, key) end
  end
end

return tokens
