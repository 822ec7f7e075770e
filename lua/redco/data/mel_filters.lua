--- Filters of spectra by the mel scale.
local torch = require "redco.torch"

-- Each scale as functions of a frequency, a number, and of mels, a tensor.
local scales = {
  -- Linear to 1000 Hz, then logarithmic.
  slaney = {
    mel_of = function(hertz)
      return hertz < 1000 and 3 * hertz / 200 or 15 + math.log(hertz / 1000) * 27 / math.log(6.4)
    end,
    hertz_of = function(mels)
      return torch.where(mels:lt(15), mels * (200 / 3),
        ((mels - 15) * (math.log(6.4) / 27)):exp() * 1000)
    end,
  },
  htk = {
    mel_of = function(hertz) return 2595 * math.log10(1 + hertz / 700) end,
    hertz_of = function(mels) return (torch.pow(10, mels / 2595) - 1) * 700 end,
  },
}

--- Returns n triangular filters [n, 1 + n_fft / 2] of frequencies from `least` to `most` Hz. Those
--- of the scale "slaney" have the area 1, those of "htk" the height 1.
return function(n, n_fft, sampling_rate, scale, least, most)
  local float64, own = { dtype = "float64" }, scales[scale]
  local edges = own.hertz_of(torch.linspace(own.mel_of(least), own.mel_of(most), n + 2, float64))
  local bins = torch.linspace(0, math.floor(sampling_rate / 2), 1 + math.floor(n_fft / 2), float64)
  local function edge(i) return edges:narrow(0, i, n):unsqueeze(1) end
  local left, middle, right = edge(0), edge(1), edge(2)
  local rising, falling = (bins - left) / (middle - left), (right - bins) / (right - middle)
  local filters = torch.minimum(rising, falling):clamp_min(0)
  if scale == "slaney" then filters = filters * (2 / (right - left)) end
  return filters:float()
end
