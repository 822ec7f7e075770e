--- DeiT (Touvron et al., 2020), as Hugging Face's `DeiTForImageClassification` and `DeiTModel`: ViT
--- with a second token.
local new_family = require "redco.models.kinds.vit_like"

return new_family {
  model_type = "deit",
  models = "DeiT",
  remarks = "one classifier, not that of the distilled ones",
  class = "DeiT",
  prefix = "deit",
  defaults = {
    hidden_size = 768,
    num_hidden_layers = 12,
    num_attention_heads = 12,
    intermediate_size = 3072,
    hidden_act = "gelu",
    hidden_dropout_prob = 0.0,
    attention_probs_dropout_prob = 0.0,
    initializer_range = 0.02,
    layer_norm_eps = 1e-12,
    image_size = 224,
    patch_size = 16,
    num_channels = 3,
    qkv_bias = true,
  },
  tokens = { "cls_token", "distillation_token" },
  starts_with_zeros = true,
  has_pooler = true,
}
