--- BioGPT (Luo et al., 2022), as Hugging Face's `BioGptForCausalLM`: OPT with scaled embeddings.
local new_family = require "redco.models.kinds.opt_like"
local tasks = require "redco.models.tasks"

return new_family {
  model_type = "biogpt",
  models = "BioGPT",
  architecture = "BioGptForCausalLM",
  tasks = tasks.of_decoder("BioGpt", { token_classification = "classifier" }),
  base_model_prefix = "biogpt",
  prefix = "biogpt.",
  last_norm = "layer_norm",
  lm_head = "output_projection",
  drops_embedding = true,
  defaults = {
    vocab_size = 42384,
    hidden_size = 1024,
    num_hidden_layers = 24,
    num_attention_heads = 16,
    intermediate_size = 4096,
    hidden_act = "gelu",
    hidden_dropout_prob = 0.1,
    attention_probs_dropout_prob = 0.1,
    max_position_embeddings = 1024,
    initializer_range = 0.02,
    layer_norm_eps = 1e-12,  -- transformers does not read this key
    scale_embedding = true,
    activation_dropout = 0,
    tie_word_embeddings = true,
    pad_token_id = 1,
    bos_token_id = 0,
    eos_token_id = 2,
  },
  -- Training never drops layers, so this key has no effect.
  optional = { "layerdrop" },
  keys = { inner = "intermediate_size", activation = "hidden_act", dropout = "hidden_dropout_prob",
    attention_dropout = "attention_probs_dropout_prob", std = "initializer_range",
    activation_dropout = "activation_dropout" },
  scales = function(c) return c.scale_embedding end,
}
