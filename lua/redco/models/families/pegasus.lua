--- Pegasus (Zhang et al., 2019), as Hugging Face's `PegasusForConditionalGeneration`: BART with
--- norms before the layers, sinusoidal positions, and without a norm of the embedding.
local new_family = require "redco.models.kinds.bart_like"

return new_family {
  model_type = "pegasus",
  models = "Pegasus",
  architecture = "PegasusForConditionalGeneration",
  norm_first = true,
  norm_of_embedding = false,
  positions = "sinusoidal",
  defaults = {
    pad_token_id = 0,
    eos_token_id = 1,
    decoder_start_token_id = 0,
    forced_eos_token_id = 1,
  },
  -- Model folders contain settings of norms, which transformers does not read.
  optional = { "bos_token_id", "classifier_dropout", "classif_dropout", "id2label", "label2id",
    "num_labels", "add_final_layer_norm", "add_bias_logits", "normalize_before",
    "normalize_embedding", "static_position_embeddings", "extra_pos_embeddings",
    "force_bos_token_to_be_generated", "length_penalty", "max_length", "num_beams" },
  only = { is_encoder_decoder = true, tie_word_embeddings = true, encoder_layerdrop = 0,
    decoder_layerdrop = 0 },
  ignored = { "[ed][ne]coder%.embed_tokens%.weight$" },
}
