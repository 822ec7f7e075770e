--- CLAP (Wu et al., 2023), as Hugging Face's `ClapModel`: texts and sounds are compared by the
--- angles between their projected features. Calls return logits [sounds, texts].
local audio = require "redco.models.families.clap_audio_model".tower
local blocks = require "redco.models.layers.blocks"
local complete_config = require "redco.models.config"
local contrastive = require "redco.models.tasks.contrastive"
local fail = require "redco.fail"
local gather = require("redco.native").gather_micro_batches
local json = require "redco.models.json"
local text = require "redco.models.families.clap_text_model".tower
local torch = require "redco.torch"
local tower = require "redco.models.kinds.tower"

local parts = { text_config = text, audio_config = audio }

local clap = {
  model_type = "clap",
  models = "CLAP",
  remarks = "compares sounds with texts",
  architecture = "ClapModel",
  task = "similarity",
  base_model_prefix = "clap",
  inputs = { "input_ids", "attention_mask", "position_ids", "input_features", "is_longer" },
  nullable = { "text_config", "audio_config" },
  defaults = { text_config = {}, audio_config = {}, logit_scale_init_value = 1 / 0.07,
    projection_dim = 512, projection_hidden_act = "relu", initializer_factor = 1.0 },
  -- transformers writes the text model's values of these keys.
  optional = { "hidden_size", "num_hidden_layers" },
  ignored = { "position_ids$", "token_type_ids$", "num_batches_tracked$",
    "relative_position_index$" },
}
clap.variants = { clap }

function clap.config_parts() return parts end

function clap.complete(c, is_file)
  for key, part in pairs(parts) do
    local given = c[key] or {}
    if type(given) ~= "table" then fail("clap: the configuration's %s is no table", key) end
    given = json.copy(given)
    given.projection_dim = c.projection_dim
    given.projection_hidden_act = c.projection_hidden_act
    c[key] = complete_config(part, given, is_file)
  end
end

function clap.check(c)
  if c.logit_scale_init_value <= 0 then
    fail("clap: logit_scale_init_value is %g, expected a positive number",
      c.logit_scale_init_value)
  end
end

-- Returns the keys that determine how the projections are initialised.
local function of_projections(c)
  return { hidden_size = c.text_config.hidden_size, initializer_factor = c.initializer_factor,
    num_hidden_layers = c.text_config.num_hidden_layers + #c.audio_config.depths }
end

function clap.add_parameters(c, add)
  for key, part in pairs(parts) do
    tower.add_parameters(part, c[key], add)
    part.projection.add(c[key], add, of_projections(c))
  end
  for _, name in ipairs { "logit_scale_a", "logit_scale_t" } do
    add(name, {}, blocks.constant(math.log(c.logit_scale_init_value)))
  end
end

-- Returns function(params, inputs, o) -> features [B, size] of length 1.
local function new_features(part, c)
  local run, project = tower.new(part, c), part.projection.new(c)
  return function(params, inputs, o)
    local _, features = run(params, inputs, o)
    features = project(params, features, o)
    return features / torch.linalg_vector_norm(features, 2, { -1 }, true)
  end
end

function clap.new_functions(c)
  local functions = {
    get_text_features = new_features(text, c.text_config),
    get_audio_features = new_features(audio, c.audio_config),
  }
  local runs = { text = tower.new(text, c.text_config), audio = tower.new(audio, c.audio_config) }

  function functions.output(params, inputs, o)
    return functions.get_audio_features(params, inputs, o)
      :matmul(functions.get_text_features(params, inputs, o):t()) * params.logit_scale_a:exp()
  end

  -- Returns the hidden states of the texts if there are texts, else those of the sounds.
  function functions.hidden_states(params, inputs, o)
    local kept = {}
    local run = inputs.input_ids and runs.text or runs.audio
    return (run(params, inputs, o, kept)), kept
  end

  return functions
end

--- The logits of all micro-batches, for the loss: of the texts [texts, sounds], by both scales.
function clap.compare(model, params, inputs, o)
  local angles = gather(model.get_text_features(params, inputs, o))
    :matmul(gather(model.get_audio_features(params, inputs, o)):t())
  return { angles * params.logit_scale_t:exp(), angles * params.logit_scale_a:exp() }
end

--- As in transformers, the mean of two cross-entropies of the sound of each text, by either scale.
function clap.loss(c, logits) return contrastive.loss_of_rows(c, logits) end

return clap
