-- redco.data.audio, resample and feature_extractor against soundfile, torchaudio and transformers
-- (audio_cases, made by tests/tools/make_audio_cases.py).
local redco = require "redco"
local testing = require "testing"

local data, torch = redco.data, redco.torch
local test, expect_error, expect_equal = testing.test, testing.expect_error, testing.expect_equal

local expected = torch.load "audio_cases/expected.safetensors"
local stored = data.json "audio_cases/cases.json"
local names = { "pcm8.wav", "pcm16.wav", "pcm24.wav", "pcm32.wav", "float.wav", "pcm16.flac",
  "mono24.flac", "vorbis.ogg", "opus.ogg" }

test("files of all kinds have the samples that were written", function()
  for _, name in ipairs(names) do
    local samples, rate = data.audio("audio_cases/" .. name)
    -- Decoders of Vorbis and Opus may round differently.
    local bound = name:find "ogg$" and 1e-3 or 0
    testing.expect_close(samples, expected["file." .. name], 0, bound)
    expect_equal(samples.dtype, "float32")
    expect_equal(rate, 8000)
    assert(samples:is_contiguous())
  end
end)

local path = testing.folder() .. "/sound"
local function write(bytes)
  os.remove(path)
  return testing.write(path, bytes)
end

local function expect_refused(bytes, ...)
  write(bytes)
  return expect_error(function() data.audio(path) end, "audio_spec.lua:", path, ...)
end

test("a file cut short anywhere is an error that names it", function()
  for _, name in ipairs(names) do
    local bytes = data.read("audio_cases/" .. name)
    for size = 0, #bytes - 1, 13 do expect_refused(bytes:sub(1, size)) end
    expect_refused(bytes:sub(1, #bytes - 1), name:find "flac$" and "FLAC" or "truncated")
  end
end)

test("a changed byte gives sound or an error", function()
  for _, name in ipairs(names) do
    local bytes = data.read("audio_cases/" .. name)
    for at = 1, #bytes, 11 do
      for _, change in ipairs { 1, 128, 255 } do
        write(bytes:sub(1, at - 1) .. string.char((bytes:byte(at) + change) % 256)
          .. bytes:sub(at + 1))
        local ok, samples = pcall(data.audio, path)
        if ok then
          expect_equal(samples:dim(), 2)
        else
          assert(tostring(samples):find(path, 1, true), samples)
        end
      end
    end
  end
end)

local function little_endian(n, size)
  local bytes = {}
  for i = 1, size or 4 do bytes[i], n = string.char(n % 256), math.floor(n / 256) end
  return table.concat(bytes)
end

-- A WAV file of 16-bit samples.
local function wav(values, rate, n_bytes)
  local samples = {}
  for i, value in ipairs(values) do samples[i] = little_endian(value % 65536, 2) end
  local all = table.concat(samples)
  return "RIFF" .. little_endian(n_bytes or 36 + #all) .. "WAVEfmt " .. little_endian(16)
    .. little_endian(1, 2) .. little_endian(1, 2) .. little_endian(rate) .. little_endian(2 * rate)
    .. little_endian(2, 2) .. little_endian(16, 2) .. "data" .. little_endian(n_bytes or #all)
    .. all
end

test("what is no sound; headers that lie; NaN", function()
  expect_refused("", "not a WAV, FLAC or Ogg file")
  expect_refused("ID3....", "not a WAV, FLAC or Ogg file")
  expect_refused("RIFF....AVI ", "not a WAV, FLAC or Ogg file")
  local flac = data.read "audio_cases/pcm16.flac"
  -- 2^36 - 1 samples in the header.
  expect_refused(flac:sub(1, 21) .. "\255" .. ("\255"):rep(4)
    .. flac:sub(27), "samples")
  local float = data.read "audio_cases/float.wav"
  expect_refused(float:sub(1, -5) .. "\0\0\192\127", "NaN")
  expect_error(function() data.audio "nowhere.wav" end, "audio_spec.lua:", "nowhere.wav")
  expect_error(function() data.audio "audio_cases" end, "audio_spec.lua:", "audio_cases")
  expect_error(function() data.audio(path, { sampling_rate = 0 }) end, "sampling_rate")
  expect_error(function() data.audio(path, { mono = true }) end, "mono")
end)

test("a WAV file of a pipe, whose header has no length", function()
  write(wav({ 1, -2, 16384 }, 16000, 0xFFFFFFFF))
  testing.expect_close(data.audio(path), torch.tensor { { 1 / 32768, -2 / 32768, 0.5 } }, 0, 0)
  write(wav({}, 16000))
  expect_equal(table.concat(data.audio(path).shape, ","), "1,0")
end)

test("resample is torchaudio's", function()
  local n = 0
  for name, from in pairs(expected) do
    local source, target = name:match "^resample%.(%d+)%.(%d+)%.from$"
    if source then
      n = n + 1
      -- torchaudio computes the places in float32.
      local to = data.resample(from, tonumber(source), tonumber(target))
      testing.expect_close(to, expected[name:gsub("from$", "to")], 0, 1e-5)
    end
  end
  expect_equal(n, 10)
end)

test("resample keeps a sine, and removes what the new rate cannot have", function()
  local function sine(frequency, rate, n)
    return (torch.arange(n, { dtype = "float64" }) * (2 * math.pi * frequency / rate)):sin():float()
  end
  for _, rates in ipairs { { 44100, 16000 }, { 8000, 16000 }, { 16000, 44100 } } do
    local from, to = unpack(rates)
    local x = data.resample(sine(1000, from, from), from, to)
    expect_equal(x:size(0), to)
    local off = (x - sine(1000, to, to)):narrow(0, 100, to - 200):abs():max():item()
    assert(off < 2e-3, off)
  end
  local rest = data.resample(sine(12000, 44100, 44100), 44100, 16000)
  assert(rest:narrow(0, 100, 15800):abs():max():item() < 3e-3)
  write(wav({ 0, 100, 200, 300 }, 8000))
  local x, rate = data.audio(path, { sampling_rate = 16000 })
  expect_equal(rate, 16000)
  testing.expect_close(x, data.resample(data.audio(path), 8000, 16000), 0, 0)
  expect_equal(data.resample(x, 16000, 16000):size(1), 8)
  expect_error(function() data.resample(x, 0, 16000) end, "orig_freq")
  expect_error(function() data.resample(x, 16000, 1e6) end, "new_freq")
  expect_error(function() data.resample(x:to "int64", 16000, 8000) end, "floating-point")
  expect_error(function() data.resample({ 1 }, 16000, 8000) end, "tensor")
end)

local sounds = { expected["sound.0"], expected["sound.1"] }

test("features are those of transformers", function()
  for name, config in pairs(stored.features) do
    local features = data.feature_extractor(config)(sounds)
    local every_fifth = features:index_select(2, torch.arange(0, features:size(2), 5))
    testing.expect_close(every_fifth, expected["features." .. name], 1e-5, 1e-5)
  end
  local features, mask = data.feature_extractor { chunk_length = 1 }(sounds,
    { padding = "longest", truncation = false, sampling_rate = 16000 })
  testing.expect_close(features, expected["features.longest"], 1e-5, 1e-5)
  testing.expect_close(mask, expected["mask.longest"], 0, 0)
end)

test("features of one sound, cut and not", function()
  local extract = data.feature_extractor { chunk_length = 1 }
  local long = torch.cat { sounds[1], sounds[1], sounds[1], sounds[1] }  -- 20000 samples
  expect_equal(table.concat(extract(long).shape, ","), "1,80,100")
  testing.expect_close(extract(long), extract(long:narrow(0, 0, 16000)), 0, 0)
  expect_equal(extract(long, { truncation = false }):size(2), 125)
  testing.expect_close(extract(long:unsqueeze(0)), extract { long }, 0, 0)
end)

test("feature_extractor refuses what it does not do", function()
  local function refuses(config, ...)
    expect_error(function() data.feature_extractor(config) end, "audio_spec.lua:", ...)
  end
  refuses({ feature_extractor_type = "SpeechT5FeatureExtractor" }, "SpeechT5FeatureExtractor",
    "ParakeetFeatureExtractor")
  local samples = "Wav2Vec2FeatureExtractor"
  refuses({ feature_extractor_type = samples, feature_size = 2 }, "feature_size = 2")
  refuses({ feature_extractor_type = samples, hop_length = 160 }, "hop_length")
  refuses({ feature_extractor_type = samples, do_normalize = 1 }, "do_normalize", "boolean")
  refuses({ do_normalize = true }, "do_normalize")
  refuses({ padding_side = "left" }, "padding_side")
  refuses({ dither = 0.1 }, "dither")
  refuses({ feature_size = 0 }, "feature_size")
  refuses({ hop_length = 500 }, "hop_length")
  refuses({ fmin = 1 }, "fmin")
  refuses("nowhere", "nowhere")
  refuses(nil, "nil")
  local extract = data.feature_extractor {}
  local function refuses_sound(sound, options, ...)
    expect_error(function() extract(sound, options) end, "audio_spec.lua:", ...)
  end
  refuses_sound(torch.zeros { 2, 3, 10 }, nil, "[2, 3, 10]")
  refuses_sound({ torch.zeros { 2, 10 } }, nil, "mean(0)")
  refuses_sound({ torch.zeros({ 10 }, { dtype = "int64" }) }, nil, "int64")
  refuses_sound({}, nil, "no sound")
  refuses_sound("x", nil, "got \"x\"")
  refuses_sound(sounds, { sampling_rate = 8000 }, "8000", "16000")
  refuses_sound(sounds, { padding = true }, "padding")
  refuses_sound(torch.zeros { 100 }, { padding = "longest" }, "100 samples")
end)

testing.finish()
