--- UMT5 (Chung et al., 2023), as Hugging Face's `UMT5ForConditionalGeneration`: mT5 with biases by
--- distance in each layer.
local new_family = require "redco.models.kinds.t5_like"

return new_family {
  model_type = "umt5",
  models = "UMT5",
  architecture = "UMT5ForConditionalGeneration",
  bias_in_each_layer = true,
  scales_in_version_5 = true,
  defaults = {
    vocab_size = 250112,
    d_model = 512,
    d_kv = 64,
    d_ff = 1024,
    num_layers = 8,
    num_heads = 6,
    relative_attention_num_buckets = 32,
    relative_attention_max_distance = 128,
    dropout_rate = 0.1,
    layer_norm_epsilon = 1e-6,
    initializer_factor = 1.0,
    feed_forward_proj = "gated-gelu",
    is_encoder_decoder = true,
    tie_word_embeddings = true,
    pad_token_id = 0,
    eos_token_id = 1,
    decoder_start_token_id = 0,
  },
}
