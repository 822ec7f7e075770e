--- Granite (IBM, 2024), as Hugging Face's `GraniteForCausalLM`: LLaMA with factors of embeddings,
--- scores, residual additions and logits.
local new_family = require "redco.models.kinds.llama_like"
local tasks = require "redco.models.tasks"

return new_family {
  model_type = "granite",
  models = "Granite 3",
  architecture = "GraniteForCausalLM",
  tasks = { features = tasks.features "Granite" },
  defaults = {
    vocab_size = 32000,
    intermediate_size = 11008,
    hidden_act = "silu",
    max_position_embeddings = 2048,
    rms_norm_eps = 1e-6,
    attention_bias = false,
    mlp_bias = false,
    embedding_multiplier = 1,
    attention_multiplier = 1,
    residual_multiplier = 1,
    logits_scaling = 1,
    bos_token_id = 1,
    eos_token_id = 2,
  },
  facts = function(c)
    return {
      qkv_bias = c.attention_bias, o_bias = c.attention_bias, mlp_bias = c.mlp_bias,
      embedding_scale = c.embedding_multiplier, attention_scale = c.attention_multiplier,
      residual_scale = c.residual_multiplier, logits_scale = 1 / c.logits_scaling,
    }
  end,
}
