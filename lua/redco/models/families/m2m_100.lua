--- M2M-100 (Fan et al., 2020) and NLLB-200 (NLLB Team, 2022), as Hugging Face's
--- `M2M100ForConditionalGeneration`: BART with norms before the layers, and sinusoidal positions of
--- the tokens that are no padding.
local new_family = require "redco.models.kinds.bart_like"

return new_family {
  model_type = "m2m_100",
  models = "M2M-100, NLLB-200",
  architecture = "M2M100ForConditionalGeneration",
  norm_first = true,
  norm_of_embedding = false,
  positions = "of tokens",
  lacks_logits_bias = true,
  defaults = {
    vocab_size = 128112,
    activation_function = "relu",
    attention_dropout = 0.1,
    scale_embedding = true,
    pad_token_id = 1,
    bos_token_id = 0,
    eos_token_id = 2,
    decoder_start_token_id = 2,
  },
  -- Training never drops layers, so the first two keys have no effect.
  optional = { "encoder_layerdrop", "decoder_layerdrop", "max_length", "num_beams" },
  only = { is_encoder_decoder = true, tie_word_embeddings = true },
  ignored = { "[ed][ne]coder%.embed_tokens%.weight$" },
}
