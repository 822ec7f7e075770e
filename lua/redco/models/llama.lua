--- LLaMA (Touvron et al., 2023), as Hugging Face's `LlamaForCausalLM`: RMS norms, rotary positions,
--- gated feed-forward layers, and groups of heads that share keys and values.
local blocks = require "redco.models.blocks"
local rotary = require "redco.models.rotary"

local llama = {
  model_type = "llama",
  architecture = "LlamaForCausalLM",
  base_model_prefix = "model",
  defaults = {
    vocab_size = 32000,
    hidden_size = 4096,
    intermediate_size = 11008,
    num_hidden_layers = 32,
    num_attention_heads = 32,
    hidden_act = "silu",
    max_position_embeddings = 2048,
    initializer_range = 0.02,
    rms_norm_eps = 1e-6,
    rope_theta = 10000,
    attention_bias = false,
    attention_dropout = 0,
    mlp_bias = false,
    tie_word_embeddings = false,
    bos_token_id = 1,
    eos_token_id = 2,
  },
  optional = { "num_key_value_heads", "head_dim", "rope_scaling", "rope_parameters",
    "original_max_position_embeddings", "pretraining_tp" },
  -- transformers reads this key but rotates whole heads: other values fail there.
  only = { partial_rotary_factor = 1 },
  -- Buffers that old checkpoints store among the weights.
  ignored = { "%.rotary_emb%.inv_freq$" },
}

function llama.complete(c)
  rotary.complete(c)
  c.num_key_value_heads = c.num_key_value_heads or c.num_attention_heads
  c.head_dim = c.head_dim or math.floor(c.hidden_size / c.num_attention_heads)
end

function llama.check(c)
  blocks.check_multiple(c, "num_attention_heads", "num_key_value_heads")
  rotary.settings("llama", c, c.head_dim)
end

function llama.add_parameters(c, add)
  local normal = blocks.normal(c.initializer_range)
  local width, inner = c.hidden_size, c.intermediate_size
  local q_size = c.num_attention_heads * c.head_dim
  local kv_size = c.num_key_value_heads * c.head_dim
  add("model.embed_tokens.weight", { c.vocab_size, width },
    blocks.normal_but_padding(c, c.initializer_range))
  for i = 0, c.num_hidden_layers - 1 do
    local layer = ("model.layers.%d."):format(i)
    local function linear(name, n_in, n_out, bias)
      blocks.add_linear(add, layer .. name, n_in, n_out, normal, bias)
    end
    add(layer .. "input_layernorm.weight", { width }, blocks.ones)
    linear("self_attn.q_proj", width, q_size, c.attention_bias)
    linear("self_attn.k_proj", width, kv_size, c.attention_bias)
    linear("self_attn.v_proj", width, kv_size, c.attention_bias)
    linear("self_attn.o_proj", q_size, width, c.attention_bias)
    add(layer .. "post_attention_layernorm.weight", { width }, blocks.ones)
    linear("mlp.gate_proj", width, inner, c.mlp_bias)
    linear("mlp.up_proj", width, inner, c.mlp_bias)
    linear("mlp.down_proj", inner, width, c.mlp_bias)
  end
  add("model.norm.weight", { width }, blocks.ones)
  if not c.tie_word_embeddings then add("lm_head.weight", { c.vocab_size, width }, normal) end
end

function llama.head(c)
  return c.tie_word_embeddings and "model.embed_tokens.weight" or "lm_head.weight"
end

function llama.new_forward(c)
  local activation = blocks.activation("llama", c.hidden_act)
  local rope = rotary.settings("llama", c, c.head_dim)
  local padding_row = blocks.padding_row(c)

  local function attention(params, name, x, cos, sin, mask, o)
    local function heads(projection, n)
      return blocks.split_heads(blocks.linear(params, name .. projection, x, o), n)
    end
    local q = rotary.turn_halves(heads(".q_proj", c.num_attention_heads), cos, sin)
    local k = rotary.turn_halves(heads(".k_proj", c.num_key_value_heads), cos, sin)
    local v = heads(".v_proj", c.num_key_value_heads)
    if o.cache then k, v = o.cache:extend(name, k, v) end
    local y = blocks.attention(q, k, v, {
      mask = mask.mask, causal = mask.causal, dropout = c.attention_dropout,
      enable_gqa = c.num_key_value_heads < c.num_attention_heads,
    }, o)
    return blocks.linear(params, name .. ".o_proj", y, o)
  end

  local function mlp(params, name, x, o)
    local gate = activation(blocks.linear(params, name .. ".gate_proj", x, o))
    return blocks.linear(params, name .. ".down_proj",
      gate * blocks.linear(params, name .. ".up_proj", x, o), o)
  end

  return function(params, inputs, o)
    local x = blocks.embedding(params, "model.embed_tokens", inputs.input_ids, padding_row)
    local cos, sin = rotary.of_halves(rotary.angles(rope, inputs, o, x))
    local mask = blocks.causal_mask(inputs, o, x)
    for i = 0, c.num_hidden_layers - 1 do
      local layer = ("model.layers.%d."):format(i)
      local function norm(name)
        return blocks.rms_norm(params, layer .. name, x, c.rms_norm_eps)
      end
      x = x + attention(params, layer .. "self_attn", norm "input_layernorm", cos, sin, mask, o)
      x = x + mlp(params, layer .. "mlp", norm "post_attention_layernorm", o)
    end
    return blocks.rms_norm(params, "model.norm", x, c.rms_norm_eps)
  end
end

return llama
