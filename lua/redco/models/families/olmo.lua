--- OLMo (Groeneveld et al., 2024), as Hugging Face's `OlmoForCausalLM`: LLaMA with layer norms that
--- have no parameters.
local new_family = require "redco.models.kinds.llama_like"
local norms = require "redco.models.layers.norms"
local tasks = require "redco.models.tasks"

return new_family {
  model_type = "olmo",
  models = "OLMo",
  architecture = "OlmoForCausalLM",
  tasks = tasks.of_decoder("Olmo", {}),
  defaults = {
    vocab_size = 50304,
    intermediate_size = 11008,
    hidden_act = "silu",
    max_position_embeddings = 2048,
    attention_bias = false,
    pad_token_id = 1,
    eos_token_id = 50279,
  },
  optional = { "clip_qkv" },
  rope_type_key = "type",
  facts = function(c)
    return {
      norm = norms.layer_plain, eps = 1e-5, qkv_bias = c.attention_bias,
      o_bias = c.attention_bias, clamp = c.clip_qkv,
    }
  end,
}
