--- Gemma 3 (Gemma Team, 2025), as Hugging Face's `Gemma3ForCausalLM`: Gemma 2 without soft caps,
--- with norms of each head of q and k, and other rotary positions in the layers with a window.
local fail = require "redco.fail"
local new_family = require "redco.models.kinds.llama_like"
local norms = require "redco.models.layers.norms"
local rotary = require "redco.models.layers.rotary"
local tasks = require "redco.models.tasks"
local windows = require "redco.models.layers.windows"

local gemma3 = {
  model_type = "gemma3_text",
  models = "Gemma 3, EmbeddingGemma",
  remarks = "of `gemma3`, folders with images, only the text model is read",
  architecture = "Gemma3ForCausalLM",
  tasks = tasks.of_decoder("Gemma3Text", {}),
  defaults = {
    vocab_size = 262208,
    hidden_size = 2304,
    intermediate_size = 9216,
    num_hidden_layers = 26,
    num_attention_heads = 8,
    num_key_value_heads = 4,
    head_dim = 256,
    hidden_activation = "gelu_pytorch_tanh",
    max_position_embeddings = 131072,
    rms_norm_eps = 1e-6,
    attention_bias = false,
    query_pre_attn_scalar = 256,
    sliding_window = 4096,
    rope_theta = 1000000,
    rope_local_base_freq = 10000,
    tie_word_embeddings = true,
    pad_token_id = 0,
    bos_token_id = 2,
    eos_token_id = 1,
  },
  optional = { "layer_types", "hidden_act", "cache_implementation", "sliding_window_pattern",
    "_sliding_window_pattern", "final_logit_softcapping", "attn_logit_softcapping",
    "use_bidirectional_attention" },
  logits_cap = function(c) return c.final_logit_softcapping end,
}

--- Version 5 of transformers has one table for each kind of layers.
function gemma3.read_rope_parameters(c)
  local whole = c.rope_parameters
  local given = type(whole) == "table" and (whole.full_attention or whole.sliding_attention)
  if not given then return end
  local near = whole.sliding_attention or {}
  if (near.rope_type or "default") ~= "default" then
    fail("%s: rope_parameters.sliding_attention has rope_type %s, only default is supported",
      c.model_type, near.rope_type)
  end
  c.rope_local_base_freq = near.rope_theta or c.rope_local_base_freq
  c.rope_parameters = whole.full_attention or { rope_theta = c.rope_theta }
end

function gemma3.complete(c)
  gemma3.read_rope_parameters(c)
  local n = c.sliding_window_pattern or c._sliding_window_pattern or 6
  windows.complete(c, function(i) return (i + 1) % n ~= 0 end)
end

function gemma3.facts(c)
  local near = rotary.settings("gemma3_text", {
    rope_theta = c.rope_local_base_freq, max_position_embeddings = c.max_position_embeddings,
  }, c.head_dim)
  return {
    norm = norms.rms_from_one, activation = "hidden_activation", head_norms = "head",
    norms = { "input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm",
      "post_feedforward_layernorm" },
    qkv_bias = c.attention_bias, o_bias = c.attention_bias,
    embedding_scale = math.sqrt(c.hidden_size), rounds_embedding_scale = true,
    attention_scale = 1 / math.sqrt(c.query_pre_attn_scalar),
    window = windows.of_types(c),
    reach = c.use_bidirectional_attention and function(window) return math.floor(window / 2) end
      or nil,
    rope = function(i, whole)
      return c.layer_types[i + 1] == "sliding_attention" and near or whole
    end,
  }
end

return new_family(gemma3)
