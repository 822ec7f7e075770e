--- Whisper (Radford et al., 2022), as Hugging Face's `WhisperForConditionalGeneration`: an
--- encoder of sound as log-mel spectra, and a decoder of text. Norms are before layers.
local blocks = require "redco.models.layers.blocks"
local fail = require "redco.fail"
local generate = require "redco.generation.whisper"
local masks = require "redco.models.layers.masks"
local new_classifier = require "redco.models.sound.whisper_classifier"
local nn = require "redco.nn"
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

local encoder_positions, decoder_positions = "model.encoder.embed_positions",
  "model.decoder.embed_positions"

whisper.buffers = { [encoder_positions .. ".weight"] = true }

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
  local normal, size = blocks.normal(c.init_std), c.d_model
  local function linear(name, n_in, n_out, bias)
    blocks.add_linear(add, name, n_in, n_out, normal, bias)
  end
  local function norm(name) blocks.add_layer_norm(add, name, size) end
  local function attention(name)
    for _, part in ipairs { ".k_proj", ".v_proj", ".q_proj", ".out_proj" } do
      linear(name .. part, size, size, part ~= ".k_proj")
    end
    norm(name .. "_layer_norm")
  end
  for i, n_in in ipairs { c.num_mel_bins, size } do
    blocks.add_convolution(add, "model.encoder.conv" .. i, { size, n_in, 3 }, normal)
  end
  add(encoder_positions .. ".weight", { c.max_source_positions, size }, fill_with_sinusoids)
  add("model.decoder.embed_tokens.weight", { c.vocab_size, size },
    blocks.normal_but_padding(c, c.init_std))
  add(decoder_positions .. ".weight", { c.max_target_positions, size }, normal)
  for _, side in ipairs { "encoder", "decoder" } do
    local inner = c[side .. "_ffn_dim"]
    for i = 0, c[side .. "_layers"] - 1 do
      local layer = ("model.%s.layers.%d."):format(side, i)
      attention(layer .. "self_attn")
      if side == "decoder" then attention(layer .. "encoder_attn") end
      linear(layer .. "fc1", size, inner)
      linear(layer .. "fc2", inner, size)
      norm(layer .. "final_layer_norm")
    end
    norm(("model.%s.layer_norm"):format(side))
  end
end

function whisper.head() return "model.decoder.embed_tokens.weight" end

-- The layers of either stack: function(params, x, o, mask, memory, kept). Appends the input of the
-- first layer and the output of each to the list `kept`, if it is given.
local function new_layers(c, side)
  local stack, attention = ("model.%s."):format(side), blocks.new_attention(
    c[side .. "_attention_heads"], { q = ".q_proj", k = ".k_proj", v = ".v_proj",
      out = ".out_proj" }, c.attention_dropout)
  local activation = blocks.activation("whisper", c.activation_function)

  return function(params, x, o, mask, memory, kept)
    local function norm(name, y) return blocks.layer_norm(params, name, y, 1e-5) end
    local function residual(name, input, f)
      return input + blocks.dropout(f(norm(name, input)), c.dropout, o)
    end
    local function apply_layer(layer, z)
      z = residual(layer .. "self_attn_layer_norm", z, function(y)
        return attention.to_itself(params, layer .. "self_attn", y, mask, o)
      end)
      z = memory and residual(layer .. "encoder_attn_layer_norm", z, function(y)
        return attention.to_memory(params, layer .. "encoder_attn", y, memory, {}, o)
      end) or z
      return residual(layer .. "final_layer_norm", z, function(y)
        y = activation(blocks.linear(params, layer .. "fc1", y, o))
        return blocks.linear(params, layer .. "fc2", blocks.dropout(y, c.activation_dropout, o), o)
      end)
    end
    for i = 0, c[side .. "_layers"] - 1 do
      if kept then kept[#kept + 1] = x end
      x = nn.block(apply_layer, ("%slayers.%d."):format(stack, i), x)
    end
    if kept then kept[#kept + 1] = x end
    return norm(stack .. "layer_norm", x)
  end
end

local function check_features(c, features)
  if not torch.is_tensor(features) or features:dim() ~= 3 or features:size(1) ~= c.num_mel_bins
    or features:size(2) ~= 2 * c.max_source_positions then
    fail("whisper: inputs.input_features are %s, expected [batch, %d, %d], as from "
      .. "redco.data.feature_extractor", torch.is_tensor(features)
      and ("[%s]"):format(table.concat(features.shape, ", ")) or tostring(features),
      c.num_mel_bins, 2 * c.max_source_positions)
  end
end

--- Padding is silence, which is not masked.
function whisper.new_encoder(c)
  local layers = new_layers(c, "encoder")
  return function(params, inputs, o, kept)
    check_features(c, inputs.input_features)
    local function convolved(name, x, stride)
      local weight = params[name .. ".weight"]
      return torch.gelu(torch.conv1d(x:to(weight.dtype), weight, params[name .. ".bias"],
        { stride = stride, padding = 1 }))
    end
    local x = convolved("model.encoder.conv1", inputs.input_features, 1)
    x = convolved("model.encoder.conv2", x, 2):transpose(1, 2)
    -- Detached, because these positions are not trained.
    x = x + params[encoder_positions .. ".weight"]:detach()
    return layers(params, blocks.dropout(x, c.dropout, o), o, {}, nil, kept)
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
  return blocks.position_embedding(params, decoder_positions, { position_ids = places }, o, ids)
end

function whisper.new_forward(c)
  local layers, padding_row = new_layers(c, "decoder"), blocks.padding_row(c)
  return function(params, inputs, o, memory)
    local ids = inputs.decoder_input_ids
    blocks.check_length(c, "max_target_positions", o, ids)
    local x = blocks.embedding(params, "model.decoder.embed_tokens", ids, padding_row)
      + positions_of(params, inputs, o)
    local mask = masks.causal({ attention_mask = inputs.decoder_attention_mask }, o, x)
    return layers(params, blocks.dropout(x, c.dropout, o), o, mask, memory)
  end
end

whisper.variants = { new_classifier(whisper) }

return whisper
