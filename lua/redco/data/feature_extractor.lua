--- Prepares sound for a model as transformers' feature extractors do: log-mel spectra for Whisper,
--- samples for wav2vec 2.0 (sample_features.lua).
local arguments = require "redco.arguments"
local fail = require "redco.fail"
local hub = require "redco.hub"
local native = require "redco.native"
local readers = require "redco.data.readers"
local registry = require "redco.registry"
local sample_features = require "redco.data.sample_features"
local torch = require "redco.torch"

local defaults = {
  feature_size = 80, sampling_rate = 16000, hop_length = 160, chunk_length = 30, n_fft = 400,
  padding_value = 0,
}

-- Keys without an effect, as others follow from them; and keys with the only value supported.
local harmless = { "auto_map", "feature_extractor_type", "mel_filters", "n_samples",
  "nb_max_frames", "processor_class", "return_attention_mask", "return_tensors" }
local only = { padding_side = "right", dither = 0, do_normalize = false }

local function read_config(where, config)
  local kind = config.feature_extractor_type
  if kind ~= nil and kind ~= "WhisperFeatureExtractor" then
    fail("%s: the feature extractor %s is not supported, only WhisperFeatureExtractor and "
      .. "Wav2Vec2FeatureExtractor", where, kind)
  end
  local known, o = {}, {}
  for _, key in ipairs(harmless) do known[key] = true end
  for key, value in pairs(only) do
    known[key] = true
    if config[key] ~= nil and config[key] ~= value then
      fail("%s: %s = %s is not supported, only %s", where, key, config[key],
        value)
    end
  end
  for key in pairs(config) do
    if not known[key] and defaults[key] == nil then
      fail("%s: %s is not supported", where, key)
    end
  end
  for key, default in pairs(defaults) do
    local value = config[key]
    if value == nil then value = default end
    local is_count = type(value) == "number" and value >= 1 and value <= 1e6 and value % 1 == 0
    if type(value) ~= "number" or key ~= "padding_value" and not is_count then
      fail("%s: %s is %s, expected a %s", where, key, value,
        key == "padding_value" and "number" or "whole number of at least 1")
    end
    o[key] = value
  end
  if o.n_fft < 2 or o.hop_length > o.n_fft then
    fail("%s: n_fft is %d, expected at least 2 and hop_length, %d", where, o.n_fft, o.hop_length)
  end
  return o
end

-- Slaney's scale: linear to 1000 Hz, then logarithmic.
local function mel_of(hertz)
  return hertz < 1000 and 3 * hertz / 200 or 15 + math.log(hertz / 1000) * 27 / math.log(6.4)
end

local function hertz_of(mels)
  return torch.where(mels:lt(15), mels * (200 / 3),
    ((mels - 15) * (math.log(6.4) / 27)):exp() * 1000)
end

-- Returns triangular filters [feature_size, 1 + n_fft / 2] up to 8000 Hz, each of area 1.
local function mel_filters(o)
  local float64 = { dtype = "float64" }
  local edges = hertz_of(torch.linspace(mel_of(0), mel_of(8000), o.feature_size + 2, float64))
  local n = 1 + math.floor(o.n_fft / 2)
  local bins = torch.linspace(0, math.floor(o.sampling_rate / 2), n, float64)
  local left, middle, right = edges:narrow(0, 0, o.feature_size):unsqueeze(1),
    edges:narrow(0, 1, o.feature_size):unsqueeze(1), edges:narrow(0, 2, o.feature_size):unsqueeze(1)
  local rising, falling = (bins - left) / (middle - left), (right - bins) / (right - middle)
  return (torch.minimum(rising, falling):clamp_min(0) * (2 / (right - left))):float()
end

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

local sample_options = arguments("feature_extractor", {}, { "sampling_rate" })
local call_options = arguments("feature_extractor", { padding = "max_length", truncation = true },
  { "sampling_rate" })

return registry.define("redco.data.feature_extractor", [[
feature_extractor(config: string or table) -> function(sounds, options) -> input_features [batch, mels, frames], attention_mask [batch, frames]
Returns a function that prepares sound for a model. It takes sound of one channel [samples], a list
of them or a batch, and returns what transformers' WhisperFeatureExtractor does, log-mel spectra and
which frames are sound (1) and which padding (0). `config` is a folder with a
preprocessor_config.json, or a table with the same keys. Keys that stand for other steps raise an
error. With the `feature_extractor_type` "Wav2Vec2FeatureExtractor" it returns input_values [batch,
samples], padded to the longest, and if the configuration has `return_attention_mask`, the
attention_mask [batch, samples]; its only option is `sampling_rate`.

Options are `sampling_rate`, that of the sounds, which is compared with the model's; `padding`,
"max_length" (to 30 seconds) or "longest"; and `truncation`, true by default: longer sound is cut.
Sound of any length, for `Model.generate`, needs {padding = "longest", truncation = false}.]],
function(config)
  local where = "feature_extractor"
  if type(config) == "string" then
    where = hub.path("data.feature_extractor", config, "processor") .. "/preprocessor_config.json"
    config = readers.json(where)
  end
  if type(config) ~= "table" then
    fail("%s: expected a folder or a table, got %s", where, native.describe(config))
  end
  if config.feature_extractor_type == "Wav2Vec2FeatureExtractor" then
    local settings, features = sample_features(where, config)
    return function(sounds, options)
      check_rate(where, sample_options(options).sampling_rate, settings.sampling_rate)
      return features(list_of(where, sounds))
    end
  end
  local o = read_config(where, config)
  local filters, window = mel_filters(o), torch.hann_window(o.n_fft)
  local most = o.chunk_length * o.sampling_rate

  local function features(samples)
    local spectra = torch.stft(samples, o.n_fft, { hop_length = o.hop_length, window = window,
      center = true, return_complex = true })
    local power = spectra:narrow(2, 0, spectra:size(2) - 1):abs():square()
    local mel = torch.matmul(filters, power):clamp_min(1e-10):log10()
    return (torch.maximum(mel, mel:amax({ 1, 2 }, true) - 8) + 4) / 4
  end

  return function(sounds, options)
    local given = call_options(options)
    check_rate(where, given.sampling_rate, o.sampling_rate)
    if given.padding ~= "max_length" and given.padding ~= "longest" then
      fail("%s: padding is %s, expected 'max_length' or 'longest'", where, given.padding)
    end
    local list, longest = list_of(where, sounds), given.padding == "max_length" and most or 0
    for i, sound in ipairs(list) do
      if given.truncation and sound:size(0) > most then list[i] = sound:narrow(0, 0, most) end
      longest = math.max(longest, list[i]:size(0))
    end
    if longest <= o.n_fft / 2 then
      fail("%s: %d samples are too few for one frame, which has %d", where, longest, o.n_fft)
    end
    local mask = torch.zeros({ #list, longest }, { dtype = "int64" })
    for i, sound in ipairs(list) do
      mask[i - 1]:narrow(0, 0, sound:size(0)):fill_(1)
      list[i] = torch.constant_pad_nd(sound, { 0, longest - sound:size(0) }, o.padding_value)
    end
    local n_frames = math.floor(longest / o.hop_length)
    local places = torch.arange(n_frames) * o.hop_length
    return features(torch.stack(list)), mask:index_select(1, places)
  end
end)
