--- Reads model files of llama.cpp as Hugging Face's configurations and weights. Only the LLaMA
--- architecture is supported. Keys and names:
--- https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
local fail = require "redco.fail"
local native = require "redco.native"

local gguf = {}

-- Hugging Face's names of the weights of a layer, and of the others.
local of_layer = {
  attn_norm = "input_layernorm",
  attn_q = "self_attn.q_proj",
  attn_k = "self_attn.k_proj",
  attn_v = "self_attn.v_proj",
  attn_output = "self_attn.o_proj",
  ffn_norm = "post_attention_layernorm",
  ffn_gate = "mlp.gate_proj",
  ffn_up = "mlp.up_proj",
  ffn_down = "mlp.down_proj",
}
local others = {
  ["token_embd.weight"] = "model.embed_tokens.weight",
  ["output_norm.weight"] = "model.norm.weight",
  ["output.weight"] = "lm_head.weight",
}
-- The divisors of the rotary frequencies, which belong to the configuration.
local frequency_divisors = "rope_freqs.weight"

-- Returns Hugging Face's name of a tensor, or the tensor's own name if there is none.
local function name_of(tensor)
  local layer, part, kind = tensor:match "^blk%.(%d+)%.([%w_]+)%.(%a+)$"
  if of_layer[part] then return ("model.layers.%s.%s.%s"):format(layer, of_layer[part], kind) end
  return others[tensor] or tensor
end

-- Reorders the rows of a head. In the files, the two elements that rotary positions rotate together
-- are adjacent; in Hugging Face's models, all first elements precede all second ones.
local function in_halves(t, n_heads)
  return t:view { n_heads, t:size(0) / n_heads / 2, 2, -1 }:transpose(1, 2):reshape(t.shape)
end

-- Has the fields and methods of native.open_weights: `path`, keys, shape, tensor.
local Weights = {}
Weights.__index = Weights

local function new_weights(file, config)
  local self = setmetatable({ path = file.path, file = file, names = {}, sources = {} }, Weights)
  for _, tensor in ipairs(file:keys()) do
    local name = name_of(tensor)
    if tensor ~= frequency_divisors then
      self.names[#self.names + 1], self.sources[name] = name, tensor
    end
  end
  self.n_heads = { q_proj = config.num_attention_heads, k_proj = config.num_key_value_heads }
  return self
end

function Weights:keys() return self.names end

function Weights:shape(name) return self.file:shape(self.sources[name]) end

function Weights:tensor(name)
  local tensor = self.file:tensor(self.sources[name])
  local n_heads = self.n_heads[name:match "([kq]_proj)"]
  return n_heads and in_halves(tensor, n_heads) or tensor
end

local function has(file, tensor)
  for _, name in ipairs(file:keys()) do
    if name == tensor then return true end
  end
  return false
end

-- Returns two functions that read a key of the architecture: a number, and a positive integer. A
-- key without a default is required.
local function readers(file)
  local function number(key, default)
    local name = "llama." .. key
    local value = file.metadata[name]
    if value == nil then value = default end
    if type(value) ~= "number" then
      fail("%s: the key %s is %s, expected a number", file.path, name,
        value == nil and "missing" or "a " .. type(value))
    end
    return value
  end
  local function count(key, default)
    local value = number(key, default)
    if value < 1 or value % 1 ~= 0 or value >= 2 ^ 31 then
      fail("%s: llama.%s is %s, expected a positive integer", file.path, key, value)
    end
    return value
  end
  return number, count
end

-- Scalings of the rotary positions for longer texts, by their names in the files.
local scalings = {
  none = function() end,
  linear = function(number)
    return { rope_type = "linear", factor = number "rope.scaling.factor" }
  end,
  yarn = function(number)
    return { rope_type = "yarn", factor = number "rope.scaling.factor",
      original_max_position_embeddings = number "rope.scaling.original_context_length" }
  end,
}

local function rope_scaling(file, number)
  if has(file, frequency_divisors) then
    -- The settings from which LLaMA 3 computes them are not in the file; "longrope" takes any
    -- divisors.
    local divisors = file:tensor(frequency_divisors):tolist()
    return { rope_type = "longrope", short_factor = divisors, long_factor = divisors,
      attention_factor = 1 }
  end
  local kind = file.metadata["llama.rope.scaling.type"]
  local scaling = scalings[kind or "none"]
  if not scaling then
    fail("%s: llama.rope.scaling.type is '%s', expected linear, none or yarn", file.path,
      kind)
  end
  return scaling(number)
end

-- Returns the short decimal nearest to a number in single precision.
local function decimal(x) return tonumber(("%.7g"):format(x)) end

-- Returns the end tokens: that of a text, and that of a turn in a conversation.
local function ends_of(metadata)
  local eos = metadata["tokenizer.ggml.eos_token_id"]
  local eot = metadata["tokenizer.ggml.eot_token_id"]
  return eos and eot and eot ~= eos and { eos, eot } or eos or eot
end

local function config_of(file)
  local metadata = file.metadata
  local number, count = readers(file)
  local width, n_heads = count "embedding_length", count "attention.head_count"
  local head_dim = number("attention.key_length", width / n_heads)
  for _, key in ipairs { "attention.value_length", "rope.dimension_count" } do
    if number(key, head_dim) ~= head_dim then
      fail("%s: llama.%s is %s, expected the size of a head, %s", file.path, key, number(key),
        head_dim)
    end
  end
  local n_layers, n_tensors = count "block_count", #file:keys()
  if n_layers > n_tensors then
    fail("%s: llama.block_count is %d, but there are only %d tensors", file.path, n_layers,
      n_tensors)
  end
  return {
    model_type = "llama",
    vocab_size = count("vocab_size", #(metadata["tokenizer.ggml.tokens"] or {})),
    hidden_size = width,
    intermediate_size = count "feed_forward_length",
    num_hidden_layers = n_layers,
    num_attention_heads = n_heads,
    num_key_value_heads = count("attention.head_count_kv", n_heads),
    head_dim = head_dim,
    max_position_embeddings = count "context_length",
    rms_norm_eps = decimal(number "attention.layer_norm_rms_epsilon"),
    rope_theta = number("rope.freq_base", 10000),
    rope_scaling = rope_scaling(file, number),
    attention_bias = has(file, "blk.0.attn_q.bias"),
    mlp_bias = has(file, "blk.0.ffn_up.bias"),
    tie_word_embeddings = not has(file, "output.weight"),
    bos_token_id = metadata["tokenizer.ggml.bos_token_id"],
    eos_token_id = ends_of(metadata),
    pad_token_id = metadata["tokenizer.ggml.padding_token_id"],
  }
end

--- Returns whether a path names a GGUF file.
function gguf.is_named(path) return path:find "%.gguf$" ~= nil end

--- Returns the configuration of a file, and its weights: an object like that of
--- native.open_weights, with Hugging Face's names. It converts a tensor at each access.
function gguf.open(path)
  local file = native.open_gguf(path)
  local architecture = file.metadata["general.architecture"]
  if architecture ~= "llama" then
    fail("%s: general.architecture is %s, only llama is supported", path,
      architecture == nil and "missing" or ("'%s'"):format(tostring(architecture)))
  end
  local config = config_of(file)
  return config, new_weights(file, config)
end

return gguf
