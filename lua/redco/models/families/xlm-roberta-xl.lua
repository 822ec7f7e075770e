--- XLM-RoBERTa XL (Goyal et al., 2021), as Hugging Face's `XLMRobertaXLForMaskedLM` and other
--- classes: norms before the layers, and one after all.
local roberta = require "redco.models.families.roberta"

return roberta.like_roberta {
  model_type = "xlm-roberta-xl",
  models = "XLM-RoBERTa XL and XXL",
  class = "XLMRobertaXL",
  embedding_norm = false,
  last_norm = "encoder.LayerNorm",
  keeps_feed_forward = true,
  names = {
    attention = "attention", q = ".self.query", k = ".self.key", v = ".self.value",
    out = ".output.dense", attention_norm = "attention.self_attn_layer_norm",
    up = "intermediate.dense", down = "output.dense", norm = "LayerNorm",
    layer = "encoder.layer.%d.",
  },
  more = { vocab_size = 250880, hidden_size = 2560, num_hidden_layers = 36,
    num_attention_heads = 32, intermediate_size = 10240, max_position_embeddings = 514,
    type_vocab_size = 1, layer_norm_eps = 1e-5, pad_token_id = 1, bos_token_id = 0,
    eos_token_id = 2 },
}
