--- mBART (Liu et al., 2020), as Hugging Face's `MBartForConditionalGeneration`: BART with norms
--- before the layers. Labels end in the token of their language, which the decoder starts with.
local new_family = require "redco.models.kinds.bart_like"

return new_family {
  model_type = "mbart",
  models = "mBART-50",
  architecture = "MBartForConditionalGeneration",
  norm_first = true,
  norm_of_embedding = true,
  positions = "learned",
  tasks = "MBart",
  starts_with_last_label = true,
  defaults = {
    pad_token_id = 1,
    bos_token_id = 0,
    eos_token_id = 2,
    forced_eos_token_id = 2,
  },
  -- Model folders contain settings of norms, which transformers does not read.
  optional = { "classifier_dropout", "id2label", "label2id", "num_labels", "add_final_layer_norm",
    "add_bias_logits", "normalize_before", "normalize_embedding", "static_position_embeddings" },
  only = { is_encoder_decoder = true, tie_word_embeddings = true, encoder_layerdrop = 0,
    decoder_layerdrop = 0 },
  ignored = { "[ed][ne]coder%.embed_tokens%.weight$" },
}
