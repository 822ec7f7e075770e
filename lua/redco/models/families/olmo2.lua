--- OLMo 2 (OLMo et al., 2024), as Hugging Face's `Olmo2ForCausalLM`: LLaMA with norms after the
--- layers instead of before them, and norms of the whole projections q and k.
local new_family = require "redco.models.kinds.llama_like"
local tasks = require "redco.models.tasks"

return new_family {
  model_type = "olmo2",
  models = "OLMo 2",
  architecture = "Olmo2ForCausalLM",
  tasks = tasks.of_decoder("Olmo2", {}),
  defaults = {
    vocab_size = 50304,
    intermediate_size = 11008,
    hidden_act = "silu",
    max_position_embeddings = 2048,
    rms_norm_eps = 1e-5,
    attention_bias = false,
    pad_token_id = 1,
    eos_token_id = 50279,
  },
  rope_type_key = "type",
  facts = function(c)
    return {
      qkv_bias = c.attention_bias, o_bias = c.attention_bias, head_norms = "projection",
      norms = { nil, "post_attention_layernorm", nil, "post_feedforward_layernorm" },
    }
  end,
}
