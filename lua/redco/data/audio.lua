--- Sound: reading, and other sampling rates.
local arguments = require "redco.arguments"
local fail = require "redco.fail"
local named = require "redco.data.named"
local native = require "redco.native"
local readers = require "redco.data.readers"
local registry = require "redco.registry"
local torch = require "redco.torch"

local audio = {}

local function check_rate(where, name, rate)
  if type(rate) ~= "number" or rate < 1 or rate > 768000 or rate % 1 ~= 0 then
    fail("%s: %s: expected a whole number of Hz from 1 to 768,000, got %s", where, name,
      rate)
  end
end

local audio_options = arguments("data.audio", {}, { "sampling_rate" })
audio.audio = registry.define("redco.data.audio", [[
audio(path, {sampling_rate = nil}) -> samples [channels, samples], sampling_rate
Reads a WAV, FLAC or Ogg (Vorbis, Opus) file as float32 numbers, integers scaled to [-1, 1). With
`sampling_rate` they are resampled as by `redco.data.resample`; without it they have the rate of the
file, which is the second result. A truncated file, one of another format or one with NaN raises an
error.]], function(path, options)
  local wanted = audio_options(options).sampling_rate
  if wanted ~= nil then check_rate("data.audio", "sampling_rate", wanted) end
  local samples, rate = named(path, native.audio_decode, path, readers.read(path))
  if not wanted or wanted == rate then return samples, rate end
  return named(path, native.audio_resample, samples, rate, wanted), wanted
end)

audio.resample = registry.define("redco.data.resample", [[
resample(samples [..., samples], orig_freq, new_freq) -> samples [..., samples]
Returns the sound at another sampling rate, as float32 with ceil(samples * new_freq / orig_freq)
samples. The filter is a sinc in a Hann window, with torchaudio's defaults: 6 zero crossings on each
side, and a cutoff at 0.99 of the lower of both Nyquist frequencies. It is not differentiable.]],
function(samples, orig_freq, new_freq)
  if not torch.is_tensor(samples) then
    fail("data.resample: expected a tensor [..., samples], got %s", native.describe(samples))
  end
  check_rate("data.resample", "orig_freq", orig_freq)
  check_rate("data.resample", "new_freq", new_freq)
  return native.audio_resample(samples, orig_freq, new_freq)
end)

return audio
