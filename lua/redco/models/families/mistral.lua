--- Mistral (Jiang et al., 2023), as Hugging Face's `MistralForCausalLM`: LLaMA with a window in all
--- layers.
local new_family = require "redco.models.kinds.llama_like"
local tasks = require "redco.models.tasks"
local windows = require "redco.models.layers.windows"

return new_family {
  model_type = "mistral",
  models = "Mistral 7B, Nemo, Small",
  architecture = "MistralForCausalLM",
  tasks = tasks.of_decoder("Mistral",
    { token_classification = "score", question_answering = true }),
  defaults = {
    vocab_size = 32000,
    intermediate_size = 14336,
    num_key_value_heads = 8,
    hidden_act = "silu",
    max_position_embeddings = 131072,
    rms_norm_eps = 1e-6,
    sliding_window = 4096,
    bos_token_id = 1,
    eos_token_id = 2,
  },
  nullable = { "num_key_value_heads", "sliding_window" },
  facts = function(c) return { window = windows.of_all(c) } end,
}
