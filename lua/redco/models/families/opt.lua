--- OPT (Zhang et al., 2022), as Hugging Face's `OPTForCausalLM`. The 350m model has its norms after
--- the layers instead of before them, and embeddings of another size than the layers.
local new_family = require "redco.models.kinds.opt_like"
local tasks = require "redco.models.tasks"

return new_family {
  model_type = "opt",
  models = "OPT",
  architecture = "OPTForCausalLM",
  tasks = tasks.of_decoder("OPT", { question_answering = true }),
  base_model_prefix = "model",
  prefix = "model.decoder.",
  last_norm = "final_layer_norm",
  defaults = {
    vocab_size = 50272,
    hidden_size = 768,
    num_hidden_layers = 12,
    ffn_dim = 3072,
    max_position_embeddings = 2048,
    do_layer_norm_before = true,
    _remove_final_layer_norm = false,
    dropout = 0.1,
    attention_dropout = 0,
    num_attention_heads = 12,
    activation_function = "relu",
    init_std = 0.02,
    enable_bias = true,
    tie_word_embeddings = true,
    pad_token_id = 1,
    bos_token_id = 2,
    eos_token_id = 2,
  },
  optional = { "word_embed_proj_dim" },
  only = { layerdrop = 0, layer_norm_elementwise_affine = true },
  norm_first = function(c) return c.do_layer_norm_before end,
  has_last_norm = function(c) return c.do_layer_norm_before and not c._remove_final_layer_norm end,
  has_bias = function(c) return c.enable_bias end,
  embedded = function(c) return c.word_embed_proj_dim end,
  complete = function(c) c.word_embed_proj_dim = c.word_embed_proj_dim or c.hidden_size end,
}
