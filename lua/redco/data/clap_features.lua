--- Log-mel spectra for CLAP, as of transformers' ClapFeatureExtractor: each sound has the same
--- length. Of longer sound it takes a part or, with "fusion", three parts beside the whole.
local arguments = require "redco.arguments"
local fail = require "redco.fail"
local mel_filters = require "redco.data.mel_filters"
local read_settings = require "redco.data.feature_settings"
local torch = require "redco.torch"

local facts = {
  defaults = { feature_size = 64, sampling_rate = 48000, hop_length = 480, max_length_s = 10,
    fft_window_size = 1024, padding_value = 0, frequency_min = 0, frequency_max = 14000,
    truncation = "fusion", padding = "repeatpad" },
  counts = { feature_size = true, sampling_rate = true, hop_length = true, max_length_s = true,
    fft_window_size = true, frequency_max = true },
  -- transformers does not read top_db.
  harmless = { "chunk_length_s", "n_fft", "nb_frequency_bins", "nb_max_frames", "nb_max_samples",
    "return_attention_mask", "top_db" },
  only = { padding_side = "right" },
}

local scales = { fusion = "htk", rand_trunc = "slaney" }
local n_parts = 3

local extractor = { options = arguments("feature_extractor", {}, { "sampling_rate", "rng" }) }

-- How often a sound of n samples is repeated; then zeros or a cut give it the length.
local repeated = {
  pad = function() return 1 end,
  ["repeat"] = function(n, most) return math.floor(most / n) + 1 end,
  repeatpad = function(n, most) return math.floor(most / n) end,
}

-- Returns a random whole number from `first` to `last`.
local function drawn(first, last, rng)
  return torch.randint(first, last + 1, { 1 }, { generator = rng }):item()
end

-- Returns the first frames of the parts: one in each third of the places.
local function places_of_parts(n_places, rng)
  local places, first = {}, 0
  for i = 1, n_parts do
    local n = math.floor(n_places / n_parts) + (i <= n_places % n_parts and 1 or 0)
    places[i] = n > 0 and drawn(first, first + n - 1, rng) or 0
    first = first + n
  end
  return places
end

--- Returns the settings, and a function(list, given) that takes sounds [samples] and the options of
--- a call, and returns input_features [batch, 1 or 4, frames, mels] and which sounds are longer
--- than the model's [batch, 1].
function extractor.new(where, config)
  local o = read_settings(where, config, facts)
  local repeats = repeated[o.padding]
    or fail("%s: padding is %s, expected 'repeatpad', 'repeat' or 'pad'", where, o.padding)
  local scale = scales[o.truncation]
    or fail("%s: truncation is %s, expected 'fusion' or 'rand_trunc'", where, o.truncation)
  local n_fft, most = o.fft_window_size, o.max_length_s * o.sampling_rate
  local filters = mel_filters(o.feature_size, n_fft, o.sampling_rate, scale, o.frequency_min,
    o.frequency_max)
  local window, fuses = torch.hann_window(n_fft), o.truncation == "fusion"

  -- In decibels [frames, mels].
  local function spectrum(samples)
    local power = torch.stft(samples, n_fft, { hop_length = o.hop_length, window = window,
      center = true, return_complex = true }):abs():square()
    return (torch.matmul(filters, power):clamp_min(1e-10):log10() * 10):t()
  end

  local function filled(sound)
    local n = sound:size(0)
    if n == 0 then fail("%s: a sound has no samples", where) end
    sound = sound:tile { repeats(n, most) }
    return sound:size(0) > most and sound:narrow(0, 0, most)
      or torch.constant_pad_nd(sound, { 0, most - sound:size(0) }, 0)
  end

  -- The whole, scaled to as many frames as a part has, and the parts.
  local function fused(mel, n_frames, rng)
    local whole = mel:unsqueeze(0):unsqueeze(0)
    local rows = { torch.upsample_bilinear2d(whole, { n_frames, mel:size(1) }, false)[0][0] }
    for _, place in ipairs(places_of_parts(mel:size(0) - n_frames + 1, rng)) do
      rows[#rows + 1] = mel:narrow(0, place, n_frames)
    end
    return torch.stack(rows)
  end

  -- Returns [1 or 4, frames, mels], and whether the sound is longer.
  local function features(sound, rng)
    local n = sound:size(0)
    if n <= most then
      local mel = spectrum(filled(sound)):unsqueeze(0)
      return fuses and mel:expand { n_parts + 1, -1, -1 } or mel, false
    elseif not fuses then
      return spectrum(sound:narrow(0, drawn(0, n - most, rng), most)):unsqueeze(0), true
    end
    local mel, n_frames = spectrum(sound), math.floor(most / o.hop_length) + 1
    if mel:size(0) == n_frames then return mel:expand { n_parts + 1, -1, -1 }, false end
    return fused(mel, n_frames, rng), true
  end

  return o, function(list, given)
    local rows, longer, is_any = {}, {}, false
    for i, sound in ipairs(list) do
      local is_longer
      rows[i], is_longer = features(sound, given.rng)
      longer[i], is_any = { is_longer }, is_any or is_longer
    end
    if fuses and not is_any then longer[1][1] = true end
    return torch.stack(rows), torch.tensor(longer, { dtype = "bool" })
  end
end

return extractor
