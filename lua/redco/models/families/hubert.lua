--- HuBERT (Hsu et al., 2021), as Hugging Face's `HubertForCTC`, `HubertModel` and
--- `HubertForSequenceClassification`: wav2vec 2.0, trained in another way.
local new_family = require "redco.models.kinds.wav2vec2_like"

return new_family {
  model_type = "hubert", models = "HuBERT", class = "Hubert", prefix = "hubert",
  more = { feat_proj_layer_norm = true },
  has_plain_inits = true,
  only = { conv_pos_batch_norm = false },
  has_feature_norm = function(c) return c.feat_proj_layer_norm end,
}
