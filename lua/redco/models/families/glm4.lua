--- GLM-4-0414 and GLM-Z1 (GLM Team, 2025), as Hugging Face's `Glm4ForCausalLM`: GLM with norms
--- after attention and the feed-forward layer, too.
local new_family = require "redco.models.kinds.llama_like"
local rotary = require "redco.models.layers.rotary"
local tasks = require "redco.models.tasks"

return new_family {
  model_type = "glm4",
  models = "GLM-4-0414, GLM-Z1",
  architecture = "Glm4ForCausalLM",
  tasks = tasks.of_decoder("Glm4", { token_classification = "score" }),
  defaults = {
    vocab_size = 151552,
    intermediate_size = 13696,
    num_hidden_layers = 40,
    num_key_value_heads = 2,
    partial_rotary_factor = 0.5,
    head_dim = 128,
    hidden_act = "silu",
    max_position_embeddings = 131072,
    rms_norm_eps = 1.5625e-7,
    attention_bias = true,
    pad_token_id = 151329,
    eos_token_id = { 151329, 151336, 151338 },
  },
  facts = function(c)
    return {
      norms = { "input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm",
        "post_mlp_layernorm" },
      qkv_bias = c.attention_bias, joins_gate = true, turn = rotary.turn_neighbours,
    }
  end,
}
