--- Qwen2-Audio (Chu et al., 2024), as Hugging Face's `Qwen2AudioForConditionalGeneration`:
--- Whisper's encoder, of which pairs of states give one feature, a projection, and Qwen2. A longer
--- sound has more tokens.
local blocks = require "redco.models.layers.blocks"
local fail = require "redco.fail"
local new_family = require "redco.models.kinds.features_in_text"
local new_tower = require "redco.models.sound.whisper_tower"
local splice = require "redco.models.images.splice_varied"
local torch = require "redco.torch"

-- Returns the whole part of n / k, of a number or a tensor.
local function quotient(n, k)
  return torch.is_tensor(n) and n:div(k, { rounding_mode = "floor" }) or math.floor(n / k)
end

-- The second convolution reads every second frame; the means are of whole pairs.
local function n_states(n_frames) return quotient(n_frames + 1, 2) end
local function n_tokens(n_frames) return quotient(n_states(n_frames), 2) end

local function n_frames(inputs) return inputs.feature_attention_mask:ne(0):sum { 1 } end

local qwen2_audio = {
  model_type = "qwen2_audio",
  models = "Qwen2-Audio",
  architecture = "Qwen2AudioForConditionalGeneration",
  medium = "sound",
  parts = { text_config = "qwen2", audio_config = "qwen2_audio_encoder" },
  towers = { qwen2_audio_encoder = new_tower {
    model_type = "qwen2_audio_encoder",
    architecture = "Qwen2AudioEncoder",
    pool = function(x)
      local n = math.floor(x:size(1) / 2)
      return x:narrow(1, 0, 2 * n):unflatten(1, { n, 2 }):mean { 2 }
    end,
    seen = function(c, inputs)
      local places = torch.arange(c.max_source_positions, { device = inputs.input_features.device })
      return places:unsqueeze(0):lt(n_states(n_frames(inputs)):unsqueeze(1))
    end,
  } },
  is_tied = false,
  buffers = { ["model.audio_tower.embed_positions.weight"] = true },
  feature_inputs = { "feature_attention_mask" },
  defaults = { audio_token_index = 151646 },
  optional = { "tie_word_embeddings", "ignore_index", "vocab_size" },
  aliases = { audio_token_id = "audio_token_index" },
}

function qwen2_audio.read(_, _, _, _, sounds)
  if not sounds then return end
  local mask, features = sounds.feature_attention_mask, sounds.input_features
  if not mask then
    fail("qwen2_audio: inputs.feature_attention_mask is missing, which says what frames of "
      .. "input_features are no padding")
  end
  if mask:dim() ~= 2 or mask:size(0) ~= features:size(0) or mask:size(1) ~= features:size(-1) then
    fail("qwen2_audio: feature_attention_mask is [%s], expected [sounds, frames] as input_features "
      .. "[%s] have them, or both with a dimension of rows before these",
      table.concat(mask.shape, ", "), table.concat(features.shape, ", "))
  end
end

function qwen2_audio.new_projector(c)
  local projector = {}

  function projector.add_parameters(add)
    blocks.add_linear(add, "linear", c.audio_config.d_model, c.text_config.hidden_size,
      blocks.normal(c.text_config.initializer_range))
  end

  function projector.forward(params, _, last, o) return blocks.linear(params, "linear", last, o) end

  return projector
end

function qwen2_audio.new_splice()
  return function(_, x, is_sound, features, sounds)
    return splice("qwen2_audio", x, is_sound, features, { unit = "sound",
      counts = n_tokens(n_frames(sounds)), has_rows = sounds.n_real ~= nil })
  end
end

function qwen2_audio.placeholder(c, token_of)
  local word = token_of(c.audio_token_index)
  return word, function(info) return word:rep(n_tokens(info.n_frames)) end
end

return new_family(qwen2_audio)
