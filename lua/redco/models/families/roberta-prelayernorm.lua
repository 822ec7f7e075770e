--- RoBERTa with norms before the layers (Wettig et al., 2022), as Hugging Face's
--- `RobertaPreLayerNormForMaskedLM` and other classes.
local roberta = require "redco.models.families.roberta"

return roberta.like_roberta {
  model_type = "roberta-prelayernorm",
  models = "efficient_mlm",
  class = "RobertaPreLayerNorm",
  prefix = "roberta_prelayernorm",
  vocab_size = 50265,
  last_norm = "LayerNorm",
  names = {
    attention = "attention", q = ".self.query", k = ".self.key", v = ".self.value",
    out = ".output.dense", attention_norm = "attention.LayerNorm", up = "intermediate.dense",
    down = "output.dense", norm = "intermediate.LayerNorm", layer = "encoder.layer.%d.",
  },
}
