--- T5 (Raffel et al., 2020), as Hugging Face's `T5ForConditionalGeneration`. Version 1.1 has gated
--- feed-forward layers and a separate head.
local new_family = require "redco.models.kinds.t5_like"

return new_family {
  model_type = "t5",
  models = "T5, T5 1.1, FLAN-T5",
  architecture = "T5ForConditionalGeneration",
  defaults = {
    vocab_size = 32128,
    d_model = 512,
    d_kv = 64,
    d_ff = 2048,
    num_layers = 6,
    num_heads = 8,
    relative_attention_num_buckets = 32,
    relative_attention_max_distance = 128,
    dropout_rate = 0.1,
    layer_norm_epsilon = 1e-6,
    initializer_factor = 1.0,
    feed_forward_proj = "relu",
    is_encoder_decoder = true,
    tie_word_embeddings = true,
    pad_token_id = 0,
    eos_token_id = 1,
  },
}
