--- Log-mel spectra for Whisper, as of transformers' WhisperFeatureExtractor.
local arguments = require "redco.arguments"
local fail = require "redco.fail"
local mel_filters = require "redco.data.mel_filters"
local read_settings = require "redco.data.feature_settings"
local torch = require "redco.torch"

local facts = {
  defaults = { feature_size = 80, sampling_rate = 16000, hop_length = 160, chunk_length = 30,
    n_fft = 400, padding_value = 0 },
  counts = { feature_size = true, sampling_rate = true, hop_length = true, chunk_length = true,
    n_fft = true },
  harmless = { "mel_filters", "n_samples", "nb_max_frames", "return_attention_mask" },
  only = { padding_side = "right", dither = 0, do_normalize = false },
}

local highest = 8000  -- Hz

local extractor = { options = arguments("feature_extractor",
  { padding = "max_length", truncation = true }, { "sampling_rate", "pad_to_multiple_of" }) }

--- Returns the settings, and a function(list, given) that takes sounds [samples] and the options of
--- a call, and returns input_features [batch, mels, frames] and the mask of the frames [batch,
--- frames].
function extractor.new(where, config)
  local o = read_settings(where, config, facts)
  if o.n_fft < 2 or o.hop_length > o.n_fft then
    fail("%s: n_fft is %d, expected at least 2 and hop_length, %d", where, o.n_fft, o.hop_length)
  end
  local filters = mel_filters(o.feature_size, o.n_fft, o.sampling_rate, "slaney", 0, highest)
  local window, most = torch.hann_window(o.n_fft), o.chunk_length * o.sampling_rate

  local function features(samples)
    local spectra = torch.stft(samples, o.n_fft, { hop_length = o.hop_length, window = window,
      center = true, return_complex = true })
    local power = spectra:narrow(2, 0, spectra:size(2) - 1):abs():square()
    local mel = torch.matmul(filters, power):clamp_min(1e-10):log10()
    return (torch.maximum(mel, mel:amax({ 1, 2 }, true) - 8) + 4) / 4
  end

  return o, function(list, given)
    if given.padding ~= "max_length" and given.padding ~= "longest" then
      fail("%s: padding is %s, expected 'max_length' or 'longest'", where, given.padding)
    end
    local longest = given.padding == "max_length" and most or 0
    for i, sound in ipairs(list) do
      if given.truncation and sound:size(0) > most then list[i] = sound:narrow(0, 0, most) end
      longest = math.max(longest, list[i]:size(0))
    end
    local unit = given.pad_to_multiple_of
    if unit then longest = math.ceil(longest / unit) * unit end
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
end

return extractor
