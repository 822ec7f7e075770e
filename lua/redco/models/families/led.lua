--- LED (Beltagy et al., 2020), as Hugging Face's `LEDForConditionalGeneration`: BART for long
--- texts, whose encoder attends within windows. Tokens of global_attention_mask attend to all.
local fail = require "redco.fail"
local new_attention = require "redco.models.layers.led_attention"
local new_family = require "redco.models.kinds.bart_like"

local led = new_family {
  model_type = "led",
  models = "LED",
  remarks = "texts of 16,384 tokens",
  architecture = "LEDForConditionalGeneration",
  base_model_prefix = "led",
  norm_first = false,
  norm_of_embedding = true,
  positions = "learned",
  position_offset = 0,
  near_attention = new_attention,
  tasks = "LED",
  inputs = { "input_ids", "attention_mask", "global_attention_mask", "decoder_input_ids",
    "decoder_attention_mask", "encoder_hidden_states" },
  defaults = {
    max_encoder_position_embeddings = 16384,
    max_decoder_position_embeddings = 1024,
    pad_token_id = 1,
    bos_token_id = 0,
    eos_token_id = 2,
    decoder_start_token_id = 2,
  },
  -- Model folders contain settings of norms, which transformers does not read.
  optional = { "attention_window", "classif_dropout", "classifier_dropout", "id2label", "label2id",
    "num_labels", "add_final_layer_norm", "add_bias_logits", "normalize_before",
    "normalize_embedding" },
  only = { is_encoder_decoder = true, tie_word_embeddings = true, encoder_layerdrop = 0,
    decoder_layerdrop = 0 },
  ignored = { "[ed][ne]coder%.embed_tokens%.weight$" },
}

function led.complete(c)
  c.scale_embedding = false  -- transformers does not read this key
  local window, list = c.attention_window or 512, {}
  if type(window) == "number" then
    for i = 1, c.encoder_layers do list[i] = window end
    c.attention_window = list
  end
end

local check = led.check
function led.check(c)
  check(c)
  local windows = c.attention_window
  if type(windows) ~= "table" or #windows ~= c.encoder_layers then
    fail("led: attention_window has %d windows, expected one for each of %d encoder_layers",
      type(windows) == "table" and #windows or 0, c.encoder_layers)
  end
  for _, window in ipairs(windows) do
    if type(window) ~= "number" or window < 2 or window % 2 ~= 0 then
      fail("led: attention_window has %s, expected even numbers above 0", tostring(window))
    end
  end
end

return led
