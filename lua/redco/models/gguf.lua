--- Reads model files of llama.cpp as Hugging Face's configurations and weights. Only the LLaMA
--- architecture is supported. Keys and names:
--- https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
local fail = require "redco.fail"
local native = require "redco.native"
local rotary = require "redco.models.rotary"

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

--- Returns the type of a quantized tensor, nil of another.
function Weights:type(name)
  local source = self.sources[name]
  return source and select(2, native.gguf_blocks(self.file, source))
end

function Weights:shape(name) return self.file:shape(self.sources[name]) end

-- Returns a tensor with the rows in the order of Hugging Face's models.
function Weights:ordered(name, tensor)
  local n_heads = self.n_heads[name:match "([kq]_proj)"]
  return n_heads and in_halves(tensor, n_heads) or tensor
end

function Weights:tensor(name) return self:ordered(name, self.file:tensor(self.sources[name])) end

--- Returns the blocks of a quantized tensor and their type, nil for another.
function Weights:blocks(name)
  local blocks, type = native.gguf_blocks(self.file, self.sources[name])
  if blocks then return self:ordered(name, blocks), type end
end

local function has(file, tensor)
  for _, name in ipairs(file:keys()) do
    if name == tensor then return true end
  end
  return false
end

-- Returns the short decimal nearest to a number in single precision.
local function decimal(x) return tonumber(("%.7g"):format(x)) end

-- Returns the number of a key that has one for each layer, if they are equal.
local function of_all_layers(file, name, list)
  for _, value in ipairs(list) do
    if value ~= list[1] then
      fail("%s: %s has %s and %s: layers of different sizes are not supported", file.path, name,
        list[1], value)
    end
  end
  return list[1]
end

-- Returns two functions that read a key of the architecture: a number, and a positive integer. A
-- key without a default is required. The defaults are those of llama.cpp.
local function readers(file)
  local function number(key, default)
    local name = "llama." .. key
    local value = file.metadata[name]
    if value == nil then value = default end
    if type(value) == "table" then value = of_all_layers(file, name, value) end
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

-- Keys that change a model's results and are not supported, with the value that has no effect.
local unsupported = {
  ["attention.causal"] = true,
  ["attention.clamp_kqv"] = 0,
  ["attention.layer_norm_epsilon"] = 0,
  ["attention.max_alibi_bias"] = 0,
  ["attention.scale"] = 0,
  ["attention.sliding_window"] = 0,
  ["attn_logit_softcapping"] = 0,
  ["embedding_scale"] = 1,
  ["expert_count"] = 0,
  ["expert_used_count"] = 0,
  ["final_logit_softcapping"] = 0,
  ["logit_scale"] = 1,
  ["residual_scale"] = 1,
  ["rope.scaling.alpha"] = 0,
  ["rope.scaling.yarn_attn_factor"] = 1,
  ["rope.scaling.yarn_beta_fast"] = 32,
  ["rope.scaling.yarn_beta_slow"] = 1,
  ["rope.scaling.yarn_log_multiplier"] = 0,
  ["use_parallel_residual"] = false,
}

local function refuse_unsupported(file)
  for key, neutral in pairs(unsupported) do
    local value = file.metadata["llama." .. key]
    if value ~= nil and value ~= neutral and not (value == 0 and neutral == 1) then
      fail("%s: llama.%s is %s, which is not supported, only %s", file.path, key, value, neutral)
    end
  end
end

-- Returns the settings of rotary positions that are scaled for longer texts: for all pairs alike,
-- or by YaRN; nil if they are not.
local function common_scaling(file, number, count)
  local kind = file.metadata["llama.rope.scaling.type"] or "linear"
  if kind ~= "linear" and kind ~= "none" and kind ~= "yarn" then
    fail("%s: llama.rope.scaling.type is '%s', expected linear, none or yarn", file.path, kind)
  end
  -- The second key is that of older files; 0 means none.
  local factor = decimal(number("rope.scaling.factor", number("rope.scale_linear", 0)))
  if kind == "none" or factor == 0 or factor == 1 then return nil end
  return { rope_type = kind, factor = factor,
    original_max_position_embeddings = kind == "yarn"
      and count("rope.scaling.original_context_length", count "context_length") or nil }
end

-- Returns rope_scaling. All that a file says of it applies at once: the scaling, divisors of each
-- pair, and a factor of cos and sin.
local function rope_scaling(file, number, count, head_dim, theta)
  local scaling = common_scaling(file, number, count)
  local attention_factor = decimal(number("rope.scaling.attn_factor", 1))
  local divisors = has(file, frequency_divisors) and file:tensor(frequency_divisors):tolist()
  if not divisors and attention_factor == 1 then return scaling end
  local function frequencies(given)
    return rotary.frequencies(rotary.settings("llama", { rope_theta = theta, rope_scaling = given,
      max_position_embeddings = count "context_length" }, head_dim), 1)
  end
  local plain = frequencies(nil)
  local scaled, own_factor = frequencies(scaling)
  if divisors and #divisors ~= #plain then
    fail("%s: the tensor %s has %d numbers, expected %d, half the size of a head", file.path,
      frequency_divisors, #divisors, #plain)
  end
  local all = {}
  for i, frequency in ipairs(plain) do
    all[i] = frequency / scaled[i] * (divisors and divisors[i] or 1)
  end
  -- "longrope" takes any divisors.
  return { rope_type = "longrope", short_factor = all, long_factor = all,
    attention_factor = own_factor * attention_factor }
end

-- Tokens that end a text or a turn wherever a vocabulary has them, as llama.cpp lets them do.
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

-- Returns the end tokens, those that the file names first: a number, a list, or nil.
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

local function config_of(file)
  local metadata = file.metadata
  local number, count = readers(file)
  refuse_unsupported(file)
  local width, n_heads = count "embedding_length", count "attention.head_count"
  local head_dim = number("attention.key_length", math.floor(width / n_heads))
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
  local theta = decimal(number("rope.freq_base", 10000))
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
    rope_theta = theta,
    rope_scaling = rope_scaling(file, number, count, head_dim, theta),
    attention_bias = has(file, "blk.0.attn_q.bias"),
    mlp_bias = has(file, "blk.0.ffn_up.bias"),
    tie_word_embeddings = not has(file, "output.weight"),
    bos_token_id = token_of(metadata, "bos", 1),
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
