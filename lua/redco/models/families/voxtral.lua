--- Voxtral (Mistral AI, 2025), as Hugging Face's `VoxtralForConditionalGeneration`: Whisper's
--- encoder, of which a few adjacent states, joined and projected by two layers, give a feature, and
--- LLaMA. A sound fills one or more windows, all of the same number of tokens.
local blocks = require "redco.models.layers.blocks"
local fail = require "redco.fail"
local json = require "redco.models.json"
local new_family = require "redco.models.kinds.features_in_text"
local new_tower = require "redco.models.sound.whisper_tower"

local text_config = { model_type = "llama", vocab_size = 131072, hidden_size = 3072,
  intermediate_size = 8192, num_hidden_layers = 30, num_key_value_heads = 8,
  max_position_embeddings = 131072, rms_norm_eps = 1e-5, rope_theta = 1e8, head_dim = 128 }

local voxtral = {
  model_type = "voxtral",
  models = "Voxtral Mini, Voxtral Small",
  remarks = "the tokenizer in tekken.json is not read",
  architecture = "VoxtralForConditionalGeneration",
  medium = "sound",
  parts = { text_config = "llama", audio_config = "voxtral_encoder" },
  towers = { voxtral_encoder = new_tower {
    model_type = "voxtral_encoder",
    architecture = "VoxtralEncoder",
    writes_other_names = true,
  } },
  default_parts = { text_config = text_config },
  is_tied = false,
  fills_windows = true,
  buffers = { ["model.audio_tower.embed_positions.weight"] = true },
  defaults = { audio_token_id = 24, projector_hidden_act = "gelu" },
  optional = { "tie_word_embeddings", "hidden_size", "vocab_size" },
}

-- A text_config that lacks keys has these defaults, not LLaMA's.
function voxtral.settle(kind, config)
  if kind ~= "text_config" then return end
  local nulls = json.nulls(config)
  for key, value in pairs(text_config) do
    local is_given = config[key] ~= nil or nulls[key]
      or key == "rope_theta" and config.rope_parameters
    if not is_given then config[key] = value end
  end
end

function voxtral.check(c)
  local own = c.audio_config
  if own.max_source_positions * own.hidden_size % own.intermediate_size ~= 0 then
    fail("voxtral: audio_config.intermediate_size is %d, which does not divide "
      .. "max_source_positions * hidden_size, %d", own.intermediate_size,
      own.max_source_positions * own.hidden_size)
  end
end

function voxtral.n_features(c)
  local own = c.audio_config
  return own.max_source_positions * own.hidden_size / own.intermediate_size
end

function voxtral.new_projector(c)
  local width, joined = c.text_config.hidden_size, c.audio_config.intermediate_size
  local activation = blocks.activation("voxtral", c.projector_hidden_act)
  local projector = {}

  function projector.add_parameters(add)
    local normal = blocks.normal(c.text_config.initializer_range)
    blocks.add_linear(add, "linear_1", joined, width, normal, false)
    blocks.add_linear(add, "linear_2", width, width, normal, false)
  end

  function projector.forward(params, _, last, o)
    local x = last:reshape { last:size(0), -1, joined }
    return blocks.linear(params, "linear_2", activation(blocks.linear(params, "linear_1", x, o)), o)
  end

  return projector
end

function voxtral.placeholder(c, token_of)
  local word = token_of(c.audio_token_id)
  return word, function(info) return word:rep(voxtral.n_features(c) * info.n_tiles) end
end

return new_family(voxtral)
