--- GLM-4 of 2024 (GLM Team, 2024), as Hugging Face's `GlmForCausalLM`: LLaMA with gate and up in
--- one projection, and positions that turn adjacent elements of a part of each head.
local new_family = require "redco.models.kinds.llama_like"
local rotary = require "redco.models.layers.rotary"
local tasks = require "redco.models.tasks"

return new_family {
  model_type = "glm",
  models = "GLM-4-9B",
  architecture = "GlmForCausalLM",
  tasks = tasks.of_decoder("Glm", { token_classification = "score" }),
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
  nullable = { "num_key_value_heads" },
  facts = function(c)
    return { qkv_bias = c.attention_bias, joins_gate = true, turn = rotary.turn_neighbours }
  end,
}
