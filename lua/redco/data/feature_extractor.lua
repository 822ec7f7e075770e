--- Prepares sound for a model as transformers' feature extractors do.
local fail = require "redco.fail"
local hub = require "redco.hub"
local names_of = require "redco.names_of"
local native = require "redco.native"
local processor_config = require "redco.data.processor_config"
local registry = require "redco.registry"
local torch = require "redco.torch"

-- Each module has `options` of a call, and new(where, config), which returns the settings and a
-- function(list of sounds, options).
local kinds = {
  ClapFeatureExtractor = require "redco.data.clap_features",
  ParakeetFeatureExtractor = require "redco.data.parakeet_features",
  Wav2Vec2FeatureExtractor = require "redco.data.wav2vec2_features",
  WhisperFeatureExtractor = require "redco.data.whisper_features",
}

-- Returns a list of sounds [samples]. Takes one, a list or a batch.
local function list_of(where, sounds)
  if torch.is_tensor(sounds) then
    if sounds:dim() > 2 then
      fail("%s: expected sound as [samples] or [batch, samples], got [%s]", where,
        table.concat(sounds.shape, ", "))
    end
    sounds = sounds:dim() == 1 and { sounds } or torch.unbind(sounds)
  elseif type(sounds) ~= "table" then
    fail("%s: expected sound as a tensor or a list of tensors, got %s", where,
      native.describe(sounds))
  end
  local list = {}
  for i, sound in ipairs(sounds) do
    if not torch.is_tensor(sound) or not sound:is_floating_point()
      or sound:dim() ~= 1 and not (sound:dim() == 2 and sound:size(0) == 1) then
      fail("%s: expected floating-point sound of one channel, [samples], got %s; the mean over the "
        .. "channels is samples:mean(0)", where, torch.is_tensor(sound)
        and ("%s [%s]"):format(sound.dtype, table.concat(sound.shape, ", ")) or type(sound))
    end
    list[i] = sound:detach():reshape { -1 }:to { device = "cpu", dtype = "float32" }
  end
  if #list == 0 then fail("%s: there is no sound", where) end
  return list
end

local function check_rate(where, given, expected)
  if given ~= nil and given ~= expected then
    fail("%s: the sound has a sampling rate of %s Hz, the model %d: redco.data.resample changes it",
      where, given, expected)
  end
end

return registry.define("redco.data.feature_extractor", [[
feature_extractor(config: string or table) -> function(sounds, options) -> input_features [batch, ...], attention_mask [batch, frames]
Returns a function that prepares sound for a model as transformers does. It takes sound of one
channel [samples], a list of them or a batch. `config` is a folder with a preprocessor_config.json,
or with a processor_config.json of version 5 of transformers, or a table with the same keys. Keys
that stand for other steps raise an error. Its `feature_extractor_type` says what the function
returns:

`WhisperFeatureExtractor`, also without a type: log-mel spectra [batch, mels, frames], and which
frames are sound (1) and which padding (0);
`Wav2Vec2FeatureExtractor`: input_values [batch, samples], padded to the longest, and if the
configuration has `return_attention_mask`, the attention_mask [batch, samples];
`ParakeetFeatureExtractor`: log-mel spectra [batch, frames, mels] and the attention_mask;
`ClapFeatureExtractor`: log-mel spectra [batch, 1 or 4, frames, mels] and the input is_longer [batch,
1]. With the truncation "fusion" it is true for the first sound if no sound is longer than the
model's; transformers draws one.

`sampling_rate`, an option of all, is that of the sounds, which is compared with the model's. Options
of Whisper's are `padding`, "max_length" (to 30 seconds) or "longest", and `truncation`, true by
default: longer sound is cut. Sound of any length, for `Model.generate`, needs {padding = "longest",
truncation = false}. `pad_to_multiple_of` is a number of samples, of which the padded sounds have a
multiple. CLAP's has `rng`, the source of the places at which longer sound is cut.

The second result has the settings, such as `sampling_rate` and `hop_length`.]],
function(config)
  local where = "feature_extractor"
  if type(config) == "string" then
    local dir = hub.path("data.feature_extractor", config, "processor")
    config, where = processor_config(dir, "feature_extractor")
  end
  if type(config) ~= "table" then
    fail("%s: expected a folder or a table, got %s", where, native.describe(config))
  end
  local name = config.feature_extractor_type or "WhisperFeatureExtractor"
  local kind = kinds[name] or fail("%s: the feature extractor %s is not supported, only %s", where,
    name, table.concat(names_of(kinds), ", "))
  local settings, features = kind.new(where, config)
  return function(sounds, options)
    local given = kind.options(options)
    check_rate(where, given.sampling_rate, settings.sampling_rate)
    return features(list_of(where, sounds), given)
  end, settings
end)
