--- Jais 2 (Inception, 2025), as Hugging Face's `Jais2ForCausalLM`: LLaMA with layer norms, and
--- feed-forward layers without a gate.
local new_family = require "redco.models.kinds.llama_like"
local norms = require "redco.models.layers.norms"
local tasks = require "redco.models.tasks"

return new_family {
  model_type = "jais2",
  models = "Jais 2",
  architecture = "Jais2ForCausalLM",
  tasks = { features = tasks.features "Jais2" },
  defaults = {
    vocab_size = 150272,
    hidden_size = 3328,
    intermediate_size = 26624,
    num_attention_heads = 26,
    hidden_act = "relu2",
    max_position_embeddings = 8192,
    layer_norm_eps = 1e-5,
    attention_bias = true,
    mlp_bias = true,
    bos_token_id = 0,
    eos_token_id = 150024,
  },
  facts = function(c)
    return {
      norm = norms.layer, eps = "layer_norm_eps", mlp_names = { "up_proj", "down_proj" },
      qkv_bias = c.attention_bias, o_bias = c.attention_bias, mlp_bias = c.mlp_bias,
    }
  end,
}
