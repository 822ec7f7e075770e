--- Blenderbot (Roller et al., 2020), as Hugging Face's `BlenderbotForConditionalGeneration`: BART
--- with norms before the layers and without a norm of the embedding.
local new_family = require "redco.models.kinds.bart_like"

return new_family {
  model_type = "blenderbot",
  models = "Blenderbot",
  architecture = "BlenderbotForConditionalGeneration",
  norm_first = true,
  norm_of_embedding = false,
  positions = "learned",
  position_offset = 0,
  defaults = {
    vocab_size = 8008,
    max_position_embeddings = 128,
    d_model = 2560,
    encoder_layers = 2,
    encoder_attention_heads = 32,
    encoder_ffn_dim = 10240,
    decoder_layers = 24,
    decoder_attention_heads = 32,
    decoder_ffn_dim = 10240,
    pad_token_id = 0,
    bos_token_id = 1,
    eos_token_id = 2,
    decoder_start_token_id = 1,
    forced_eos_token_id = 2,
  },
  -- Model folders contain settings of norms, which transformers does not read.
  optional = { "classif_dropout", "classifier_dropout", "id2label", "label2id", "num_labels",
    "add_final_layer_norm", "add_bias_logits", "normalize_before", "normalize_embedding",
    "static_position_embeddings", "extra_pos_embeddings", "extra_layer_norm",
    "do_blenderbot_90_layernorm", "force_bos_token_to_be_generated",
    "encoder_no_repeat_ngram_size", "length_penalty",
    "max_length", "min_length", "num_beams", "layernorm_variant", "save_step", "unk_token_id" },
  only = { is_encoder_decoder = true, tie_word_embeddings = true, encoder_layerdrop = 0,
    decoder_layerdrop = 0, is_decoder = false },
  ignored = { "[ed][ne]coder%.embed_tokens%.weight$" },
}
