--- Megatron's BERT (Shoeybi et al., 2019), as Hugging Face's `MegatronBertForMaskedLM` and other
--- classes: norms before the layers, and one after all.
local bert = require "redco.models.families.bert"

return bert.like_bert {
  model_type = "megatron-bert",
  models = "Megatron-BERT, BioMegatron",
  class = "MegatronBert",
  embedding_norm = false,
  last_norm = "encoder.ln",
  names = {
    attention = "attention", q = ".self.query", k = ".self.key", v = ".self.value",
    out = ".output.dense", attention_norm = "attention.ln", up = "intermediate.dense",
    down = "output.dense", norm = "ln", layer = "encoder.layer.%d.",
  },
  more = { vocab_size = 29056, hidden_size = 1024, num_hidden_layers = 24,
    num_attention_heads = 16, intermediate_size = 4096 },
}
