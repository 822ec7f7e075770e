--- Marian (Junczys-Dowmunt et al., 2018), as Hugging Face's `MarianMTModel`: BART with sinusoidal
--- positions and without a norm of the embedding. The two stacks may have embeddings of their own.
local new_family = require "redco.models.kinds.bart_like"

return new_family {
  model_type = "marian",
  models = "Opus-MT",
  architecture = "MarianMTModel",
  norm_first = false,
  norm_of_embedding = false,
  positions = "sinusoidal",
  defaults = {
    vocab_size = 58101,
    share_encoder_decoder_embeddings = true,
    pad_token_id = 58100,
    eos_token_id = 0,
    decoder_start_token_id = 58100,
    forced_eos_token_id = 0,
  },
  -- Model folders contain settings of norms, which transformers does not read.
  optional = { "decoder_vocab_size", "classifier_dropout", "classif_dropout", "id2label",
    "label2id", "num_labels", "add_final_layer_norm", "add_bias_logits", "normalize_before",
    "normalize_embedding", "static_position_embeddings", "num_beams", "bad_words_ids",
    "max_length" },
  only = { is_encoder_decoder = true, tie_word_embeddings = true, encoder_layerdrop = 0,
    decoder_layerdrop = 0 },
  ignored = { "[ed][ne]coder%.embed_tokens%.weight$" },
  complete = function(c)
    c.decoder_vocab_size = c.decoder_vocab_size or c.vocab_size
    if c.share_encoder_decoder_embeddings then
      c.decoder_vocab_size = c.vocab_size
    end
  end,
}
