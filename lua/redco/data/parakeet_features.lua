--- Log-mel spectra for Parakeet, as of transformers' ParakeetFeatureExtractor: each band of a sound
--- has mean 0 and variance 1.
local arguments = require "redco.arguments"
local fail = require "redco.fail"
local mel_filters = require "redco.data.mel_filters"
local read_settings = require "redco.data.feature_settings"
local torch = require "redco.torch"

local facts = {
  defaults = { feature_size = 80, sampling_rate = 16000, hop_length = 160, n_fft = 512,
    win_length = 400, preemphasis = 0.97, padding_value = 0 },
  counts = { feature_size = true, sampling_rate = true, hop_length = true, n_fft = true,
    win_length = true },
  harmless = { "return_attention_mask" },
  only = { padding_side = "right" },
}

local silence = 2 ^ -24  -- added to the power
local eps = 1e-5

local extractor = { options = arguments("feature_extractor", {}, { "sampling_rate" }) }

-- Returns samples [B, n], each less a part of the one before it.
local function emphasised(x, part)
  return torch.cat({ x:narrow(1, 0, 1),
    x:narrow(1, 1, x:size(1) - 1) - x:narrow(1, 0, x:size(1) - 1) * part }, 1)
end

-- Returns which of n places are within lengths [B]: [B, n].
local function within(lengths, n) return torch.arange(n):unsqueeze(0):lt(lengths:unsqueeze(1)) end

--- Returns the settings, and a function(list) that takes sounds [samples] and returns
--- input_features [batch, frames, mels] and the mask of the frames [batch, frames].
function extractor.new(where, config)
  local o = read_settings(where, config, facts)
  if o.win_length > o.n_fft then
    fail("%s: win_length is %d, expected at most n_fft, %d", where, o.win_length, o.n_fft)
  end
  local filters = mel_filters(o.feature_size, o.n_fft, o.sampling_rate, "slaney", 0,
    o.sampling_rate / 2)
  local window = torch.hann_window(o.win_length, false)

  return o, function(list)
    local lengths, longest = {}, 0
    for i, sound in ipairs(list) do
      lengths[i] = sound:size(0)
      longest = math.max(longest, lengths[i])
      if lengths[i] < 2 * o.hop_length then
        fail("%s: sound %d has %d samples, expected at least %d, two frames", where, i, lengths[i],
          2 * o.hop_length)
      end
    end
    for i, sound in ipairs(list) do
      list[i] = torch.constant_pad_nd(sound, { 0, longest - lengths[i] }, o.padding_value)
    end
    lengths = torch.tensor(lengths, { dtype = "int64" })
    local samples = emphasised(torch.stack(list), o.preemphasis)
      :masked_fill(within(lengths, longest):logical_not(), 0)
    local power = torch.stft(samples, o.n_fft, { hop_length = o.hop_length,
      win_length = o.win_length, window = window, center = true, pad_mode = "constant",
      return_complex = true }):abs():square()
    local mel = (torch.matmul(filters, power) + silence):log():transpose(1, 2)
    lengths = lengths:div(o.hop_length, { rounding_mode = "floor" })
    local mask = within(lengths, mel:size(1))
    local is_sound, n = mask:unsqueeze(-1), lengths:view { -1, 1, 1 }
    local centred = mel - (mel * is_sound):sum({ 1 }, true) / n
    local variance = (centred * is_sound):square():sum({ 1 }, true) / (n - 1)
    return centred / (variance:sqrt() + eps) * is_sound, mask:long()
  end
end

return extractor
