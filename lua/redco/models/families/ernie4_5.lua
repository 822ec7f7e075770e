--- ERNIE 4.5 without experts (Baidu, 2025), as Hugging Face's `Ernie4_5ForCausalLM`: LLaMA whose
--- positions turn adjacent elements.
local new_family = require "redco.models.kinds.llama_like"
local rotary = require "redco.models.layers.rotary"
local tasks = require "redco.models.tasks"

return new_family {
  model_type = "ernie4_5",
  models = "ERNIE 4.5 0.3B",
  architecture = "Ernie4_5ForCausalLM",
  tasks = { features = tasks.features "Ernie4_5" },
  defaults = {
    vocab_size = 103424,
    hidden_size = 1024,
    intermediate_size = 3072,
    num_hidden_layers = 18,
    num_attention_heads = 16,
    num_key_value_heads = 2,
    head_dim = 128,
    hidden_act = "silu",
    max_position_embeddings = 131072,
    rms_norm_eps = 1e-5,
    rope_theta = 500000,
    use_bias = false,
    tie_word_embeddings = true,
    pad_token_id = 0,
    bos_token_id = 1,
    eos_token_id = 2,
  },
  nullable = { "num_key_value_heads", "head_dim" },
  -- transformers has no dropout here.
  only = { attention_dropout = 0 },
  facts = function(c)
    return {
      qkv_bias = c.use_bias, o_bias = c.use_bias, mlp_bias = c.use_bias,
      turn = rotary.turn_neighbours,
    }
  end,
}
