--- BART (Lewis et al., 2019), as Hugging Face's `BartForConditionalGeneration`: each norm follows
--- its residual addition.
local new_family = require "redco.models.kinds.bart_like"

return new_family {
  model_type = "bart",
  models = "BART",
  architecture = "BartForConditionalGeneration",
  norm_first = false,
  norm_of_embedding = true,
  positions = "learned",
  tasks = "Bart",
  defaults = {
    pad_token_id = 1,
    bos_token_id = 0,
    eos_token_id = 2,
    decoder_start_token_id = 2,
    forced_eos_token_id = 2,
  },
  optional = { "force_bos_token_to_be_generated", "classif_dropout", "classifier_dropout",
    "id2label", "label2id", "num_labels" },
  only = { is_encoder_decoder = true, tie_word_embeddings = true, encoder_layerdrop = 0,
    decoder_layerdrop = 0, normalize_embedding = true, normalize_before = false,
    add_final_layer_norm = false },
  ignored = { "[ed][ne]coder%.embed_tokens%.weight$" },
  complete = function(c)
    -- The key that old configurations have instead of forced_bos_token_id.
    if c.force_bos_token_to_be_generated then
      c.forced_bos_token_id = c.forced_bos_token_id or c.bos_token_id
    end
  end,
}
