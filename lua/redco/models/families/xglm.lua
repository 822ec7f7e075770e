--- XGLM (Lin et al., 2021), as Hugging Face's `XGLMForCausalLM`: OPT with sinusoidal positions.
local new_family = require "redco.models.kinds.opt_like"
local tasks = require "redco.models.tasks"

return new_family {
  model_type = "xglm",
  models = "XGLM",
  architecture = "XGLMForCausalLM",
  tasks = { features = tasks.features "XGLM" },
  base_model_prefix = "model",
  prefix = "model.",
  last_norm = "layer_norm",
  has_sinusoids = true,
  drops_embedding = true,
  defaults = {
    vocab_size = 256008,
    max_position_embeddings = 2048,
    d_model = 1024,
    ffn_dim = 4096,
    num_layers = 24,
    attention_heads = 16,
    activation_function = "gelu",
    dropout = 0.1,
    attention_dropout = 0.1,
    activation_dropout = 0,
    init_std = 0.02,
    scale_embedding = true,
    tie_word_embeddings = true,
    decoder_start_token_id = 2,
    pad_token_id = 1,
    bos_token_id = 0,
    eos_token_id = 2,
  },
  -- Training never drops layers, so this key has no effect.
  optional = { "layerdrop" },
  aliases = { num_attention_heads = "attention_heads", hidden_size = "d_model",
    num_hidden_layers = "num_layers" },
  only = { add_cross_attention = false },
  ignored = { "%.embed_positions%.weights$" },
  keys = { size = "d_model", layers = "num_layers", heads = "attention_heads",
    activation_dropout = "activation_dropout" },
  scales = function(c) return c.scale_embedding end,
}
