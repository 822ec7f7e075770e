--- Whisper (Radford et al., 2022), as Hugging Face's `WhisperForConditionalGeneration`: an
--- encoder of sound as log-mel spectra, and a decoder of text.
local blocks = require "redco.models.layers.blocks"
local encoder = require "redco.models.sound.whisper_encoder"
local fail = require "redco.fail"
local generate = require "redco.generation.whisper"
local layers = require "redco.models.sound.whisper_layers"
local masks = require "redco.models.layers.masks"
local new_classifier = require "redco.models.sound.whisper_classifier"
local torch = require "redco.torch"

local whisper = {
  model_type = "whisper",
  models = "Whisper",
  remarks = "transcribes and translates",
  architecture = "WhisperForConditionalGeneration",
  base_model_prefix = "model",
  inputs = { "input_features", "attention_mask", "decoder_input_ids", "decoder_attention_mask",
    "decoder_position_ids", "encoder_hidden_states" },
  generate = generate,
  lm_head = "proj_out",
  defaults = {
    vocab_size = 51865,
    num_mel_bins = 80,
    d_model = 384,
    encoder_layers = 4,
    encoder_attention_heads = 6,
    encoder_ffn_dim = 1536,
    decoder_layers = 4,
    decoder_attention_heads = 6,
    decoder_ffn_dim = 1536,
    activation_function = "gelu",
    dropout = 0.0,
    attention_dropout = 0.0,
    activation_dropout = 0.0,
    init_std = 0.02,
    max_source_positions = 1500,
    max_target_positions = 448,
    is_encoder_decoder = true,
    tie_word_embeddings = true,
    pad_token_id = 50256,
    bos_token_id = 50256,
    eos_token_id = 50256,
    decoder_start_token_id = 50257,
  },
  -- In transformers, scale_embedding has no effect on either embedding. SpecAugment is off, so its
  -- settings have no effect either.
  optional = { "begin_suppress_tokens", "suppress_tokens", "forced_decoder_ids",
    "num_hidden_layers", "scale_embedding", "median_filter_width", "classifier_proj_size",
    "use_weighted_layer_sum", "mask_time_prob", "mask_time_length", "mask_time_min_masks",
    "mask_feature_prob", "mask_feature_length", "mask_feature_min_masks" },
  only = { is_encoder_decoder = true, tie_word_embeddings = true, encoder_layerdrop = 0,
    decoder_layerdrop = 0, apply_spec_augment = false },
  -- Other names of the same settings (attribute_map of transformers).
  aliases = { hidden_size = "d_model", num_attention_heads = "encoder_attention_heads" },
}

local encoder_prefix, decoder_prefix = "model.encoder.", "model.decoder."

whisper.buffers = { [encoder_prefix .. encoder.positions] = true }

function whisper.check(c)
  for _, key in ipairs { "encoder_attention_heads", "decoder_attention_heads" } do
    blocks.check_multiple(c, "d_model", key)
  end
  if c.d_model % 2 ~= 0 then fail("whisper: d_model is %d, expected an even number", c.d_model) end
end

-- Sines of falling frequency, then their cosines, as in transformers.
local function fill_with_sinusoids(t)
  local n_positions, size = unpack(t.shape)
  local frequencies = torch.exp(torch.arange(size / 2)
    * (-math.log(10000) / math.max(size / 2 - 1, 1)))
  local angles = torch.arange(n_positions):unsqueeze(1) * frequencies
  return torch.no_grad(function() return t:copy_(torch.cat({ angles:sin(), angles:cos() }, 1)) end)
end

function whisper.add_parameters(c, add)
  encoder.add_parameters(c, blocks.add_with_prefix(add, encoder_prefix), fill_with_sinusoids)
  local add_own = blocks.add_with_prefix(add, decoder_prefix)
  add_own("embed_tokens.weight", { c.vocab_size, c.d_model },
    blocks.normal_but_padding(c, c.init_std))
  add_own("embed_positions.weight", { c.max_target_positions, c.d_model },
    blocks.normal(c.init_std))
  layers.add_parameters(c, "decoder", add_own)
end

function whisper.head() return "model.decoder.embed_tokens.weight" end

--- Padding is silence, which is not masked.
function whisper.new_encoder(c)
  local encode = encoder.new(c)
  return function(params, inputs, o, kept)
    return encode(blocks.with_prefix(params, encoder_prefix), inputs.input_features, o, nil, kept)
  end
end

-- Positions count all tokens. In generation they skip padding, which has position 1.
local function positions_of(params, inputs, o)
  local mask, ids = o.cache and inputs.decoder_attention_mask, inputs.decoder_input_ids
  local places = inputs.decoder_position_ids
  if mask and not places then
    places = blocks.place(o) and blocks.position_ids({ attention_mask = mask }, o, ids)
      or mask:cumsum(1):sub(1):masked_fill(mask:eq(0), 1):narrow(1, blocks.past(o), ids:size(1))
  end
  return blocks.position_embedding(params, "embed_positions", { position_ids = places }, o, ids)
end

function whisper.new_forward(c)
  local run, padding_row = layers.new(c, "decoder"), blocks.padding_row(c)
  return function(params, inputs, o, memory)
    params = blocks.with_prefix(params, decoder_prefix)
    local ids = inputs.decoder_input_ids
    blocks.check_length(c, "max_target_positions", o, ids)
    local x = blocks.embedding(params, "embed_tokens", ids, padding_row)
      + positions_of(params, inputs, o)
    local mask = masks.causal({ attention_mask = inputs.decoder_attention_mask }, o, x)
    return layers.last_norm(params, run(params, blocks.dropout(x, c.dropout, o), o, mask, memory))
  end
end

whisper.variants = { new_classifier(whisper) }

return whisper
