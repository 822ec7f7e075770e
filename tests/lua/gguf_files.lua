--- Writes small GGUF files from the model folders of the cases, as llama.cpp's converter does.
local ffi = require "ffi"
local redco = require "redco"
local torch = redco.torch

local gguf_files = {}

local function packed(ctype, value)
  return ffi.string(ffi.new(ctype .. "[1]", value), ffi.sizeof(ctype))
end

local function text(s) return packed("uint64_t", #s) .. s end

-- Type numbers and bytes of metadata.
local values = {
  u32 = { 4, function(x) return packed("uint32_t", x) end },
  i32 = { 5, function(x) return packed("int32_t", x) end },
  f32 = { 6, function(x) return packed("float", x) end },
  bool = { 7, function(x) return packed("uint8_t", x and 1 or 0) end },
  string = { 8, text },
}

local function encoded(kind, value)
  local element = kind:match "^(%w+)%[%]$"
  if not element then return packed("uint32_t", values[kind][1]) .. values[kind][2](value) end
  local parts = { packed("uint32_t", 9), packed("uint32_t", values[element][1]),
    packed("uint64_t", #value) }
  for _, v in ipairs(value) do parts[#parts + 1] = values[element][2](v) end
  return table.concat(parts)
end

local function bytes_of(t)
  t = t:contiguous():view { -1 }:view "uint8"
  return ffi.string(ffi.cast("const char*", t:data_ptr()), t:numel())
end

-- Blocks of 32 elements: a scale in float16 and the quotients. Returns both.
local function q8_0(t)
  local blocks = t:float():view { -1, 32 }
  local scale = (blocks:abs():amax(1, { keepdim = true }) / 127):to "float16"
  return scale, (blocks / scale:float()):round():clamp(-127, 127):to "int8"
end

--- Returns the tensor as a reader gets it after quantization.
function gguf_files.rounded(t)
  local scale, quotients = q8_0(t)
  return (quotients:float() * scale:float()):view(t.shape)
end

local types = {
  F32 = { 0, function(t) return bytes_of(t:float()) end },
  F16 = { 1, function(t) return bytes_of(t:to "float16") end },
  Q8_0 = { 8, function(t)
    local scale, quotients = q8_0(t)
    return bytes_of(torch.cat({ scale:view "uint8", quotients:view "uint8" }, 1))
  end },
}

local function padded(bytes) return bytes .. ("\0"):rep(-#bytes % 32) end

--- metadata: { {key, kind, value}... }; tensors: { {name, type, tensor}... }.
function gguf_files.write(path, metadata, tensors)
  local head = { "GGUF", packed("uint32_t", 3), packed("uint64_t", #tensors),
    packed("uint64_t", #metadata) }
  for _, entry in ipairs(metadata) do
    head[#head + 1] = text(entry[1]) .. encoded(entry[2], entry[3])
  end
  local data, offset = {}, 0
  for i, entry in ipairs(tensors) do
    local name, kind, tensor = unpack(entry)
    head[#head + 1] = text(name) .. packed("uint32_t", tensor:dim())
    for dim = tensor:dim() - 1, 0, -1 do
      head[#head + 1] = packed("uint64_t", tensor:size(dim))
    end
    head[#head + 1] = packed("uint32_t", types[kind][1]) .. packed("uint64_t", offset)
    data[i] = padded(types[kind][2](tensor))
    offset = offset + #data[i]
  end
  local file = assert(io.open(path, "wb"))
  file:write(padded(table.concat(head)), table.concat(data))
  file:close()
end

local names = {
  ["model.embed_tokens.weight"] = "token_embd.weight",
  ["model.norm.weight"] = "output_norm.weight",
  ["lm_head.weight"] = "output.weight",
  input_layernorm = "attn_norm", post_attention_layernorm = "ffn_norm",
  ["self_attn.q_proj"] = "attn_q", ["self_attn.k_proj"] = "attn_k",
  ["self_attn.v_proj"] = "attn_v", ["self_attn.o_proj"] = "attn_output",
  ["mlp.gate_proj"] = "ffn_gate", ["mlp.up_proj"] = "ffn_up", ["mlp.down_proj"] = "ffn_down",
}

-- The pairs of rotary positions side by side.
local function permuted(t, n_heads)
  local pairs_first = t:view { n_heads, 2, t:size(0) / n_heads / 2, -1 }
  return pairs_first:transpose(1, 2):reshape(t.shape)
end

--- Tensors of a LLaMA's folder; matrices whose rows can be are of the type `kind`.
function gguf_files.tensors(dir, kind)
  local config, tensors = redco.data.json(dir .. "/config.json"), {}
  for name, t in pairs(torch.load(dir .. "/model.safetensors")) do
    local layer, part, what = name:match "^model%.layers%.(%d+)%.(.+)%.(%a+)$"
    local to = layer and ("blk.%d.%s.%s"):format(layer, names[part], what) or names[name]
    if part == "self_attn.q_proj" then t = permuted(t, config.num_attention_heads) end
    if part == "self_attn.k_proj" then t = permuted(t, config.num_key_value_heads) end
    local can_be = t:dim() == 2 and t:size(1) % 32 == 0
    tensors[#tensors + 1] = { to, can_be and kind or "F32", t }
  end
  return tensors
end

--- Metadata of a LLaMA's folder: the architecture's.
function gguf_files.metadata(dir)
  local c = redco.data.json(dir .. "/config.json")
  return {
    { "general.architecture", "string", "llama" },
    { "llama.vocab_size", "u32", c.vocab_size },
    { "llama.block_count", "u32", c.num_hidden_layers },
    { "llama.context_length", "u32", c.max_position_embeddings },
    { "llama.embedding_length", "u32", c.hidden_size },
    { "llama.feed_forward_length", "u32", c.intermediate_size },
    { "llama.attention.head_count", "u32", c.num_attention_heads },
    { "llama.attention.head_count_kv", "u32", c.num_key_value_heads },
    { "llama.attention.key_length", "u32", c.head_dim },
    { "llama.attention.layer_norm_rms_epsilon", "f32", c.rms_norm_eps },
    { "llama.rope.dimension_count", "u32", c.head_dim },
    { "llama.rope.freq_base", "f32", c.rope_theta },
  }
end

local function append(list, entries)
  for _, entry in ipairs(entries) do list[#list + 1] = entry end
  return list
end

-- The tokens of a folder's tokenizer.json by number, and the types of those that are no text.
local function tokens_of(json)
  local tokens, token_types = {}, {}
  for token, id in pairs(json.model.vocab) do tokens[id + 1], token_types[id + 1] = token, 1 end
  for _, added in ipairs(json.added_tokens) do
    tokens[added.id + 1] = added.content
    token_types[added.id + 1] = added.content == "<unk>" and 2 or 3
  end
  return tokens, token_types
end

--- Adds the tokenizer of LLaMA 3's folder.
function gguf_files.add_byte_level(metadata, dir)
  local json = redco.data.json(dir .. "/tokenizer.json")
  local tokens, token_types = tokens_of(json)
  local merges = {}
  for i, merge in ipairs(json.model.merges) do merges[i] = table.concat(merge, " ") end
  return append(metadata, {
    { "tokenizer.ggml.model", "string", "gpt2" },
    { "tokenizer.ggml.pre", "string", "llama-bpe" },
    { "tokenizer.ggml.tokens", "string[]", tokens },
    { "tokenizer.ggml.token_type", "i32[]", token_types },
    { "tokenizer.ggml.merges", "string[]", merges },
    { "tokenizer.ggml.bos_token_id", "u32", 700 },
    { "tokenizer.ggml.eos_token_id", "u32", 701 },
    { "tokenizer.ggml.eot_token_id", "u32", 705 },
    { "tokenizer.ggml.padding_token_id", "u32", 702 },
    { "tokenizer.ggml.add_bos_token", "bool", true },
    { "tokenizer.chat_template", "string", "{% for message in messages %}<|start_header_id|>"
      .. "{{ message['role'] }}<|end_header_id|>{{ message['content'] }}<|eot_id|>{% endfor %}"
      .. "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>{% endif %}" },
  })
end

--- Adds the tokenizer of LLaMA's folder. SentencePiece's BPE scores its pieces by their order.
function gguf_files.add_sentencepiece(metadata, dir)
  local tokens, token_types = tokens_of(redco.data.json(dir .. "/tokenizer.json"))
  local scores, n_special = {}, 259
  for i, token in ipairs(tokens) do
    if token:find "^<0x%x%x>$" then token_types[i] = 6 end
    scores[i] = math.min(0, n_special + 1 - i)
  end
  return append(metadata, {
    { "tokenizer.ggml.model", "string", "llama" },
    { "tokenizer.ggml.tokens", "string[]", tokens },
    { "tokenizer.ggml.token_type", "i32[]", token_types },
    { "tokenizer.ggml.scores", "f32[]", scores },
    { "tokenizer.ggml.bos_token_id", "u32", 1 },
    { "tokenizer.ggml.eos_token_id", "u32", 2 },
    { "tokenizer.ggml.unknown_token_id", "u32", 0 },
  })
end

return gguf_files
