--- Gemma 2 (Gemma Team, 2024), as Hugging Face's `Gemma2ForCausalLM`: four norms in a layer, soft
--- caps on scores and logits, and windows in every other layer.
local new_family = require "redco.models.kinds.llama_like"
local norms = require "redco.models.layers.norms"
local tasks = require "redco.models.tasks"
local windows = require "redco.models.layers.windows"

return new_family {
  model_type = "gemma2",
  models = "Gemma 2",
  architecture = "Gemma2ForCausalLM",
  tasks = tasks.of_decoder("Gemma2", { token_classification = "score" }),
  defaults = {
    vocab_size = 256000,
    hidden_size = 2304,
    intermediate_size = 9216,
    num_hidden_layers = 26,
    num_attention_heads = 8,
    num_key_value_heads = 4,
    head_dim = 256,
    hidden_activation = "gelu_pytorch_tanh",
    max_position_embeddings = 8192,
    rms_norm_eps = 1e-6,
    attention_bias = false,
    query_pre_attn_scalar = 256,
    sliding_window = 4096,
    final_logit_softcapping = 30,
    attn_logit_softcapping = 50,
    tie_word_embeddings = true,
    pad_token_id = 0,
    bos_token_id = 2,
    eos_token_id = 1,
  },
  nullable = { "final_logit_softcapping", "attn_logit_softcapping" },
  -- transformers ignores hidden_act and cache_implementation, which folders of Gemma have.
  optional = { "layer_types", "hidden_act", "cache_implementation" },
  complete = function(c) windows.complete(c, function(i) return i % 2 == 0 end) end,
  logits_cap = function(c) return c.final_logit_softcapping end,
  facts = function(c)
    return {
      norm = norms.rms_from_one, activation = "hidden_activation",
      norms = { "input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm",
        "post_feedforward_layernorm" },
      qkv_bias = c.attention_bias, o_bias = c.attention_bias,
      embedding_scale = math.sqrt(c.hidden_size), rounds_embedding_scale = true,
      attention_scale = 1 / math.sqrt(c.query_pre_attn_scalar),
      softcap = c.attn_logit_softcapping, window = windows.of_types(c),
    }
  end,
}
