--- Prepares sound for models of samples, as transformers' Wav2Vec2FeatureExtractor does: rows of
--- one length with mean 0 and variance 1.
local fail = require "redco.fail"
local torch = require "redco.torch"

local defaults = { sampling_rate = 16000, padding_value = 0, do_normalize = true,
  return_attention_mask = false }
local harmless = { auto_map = true, feature_extractor_type = true, processor_class = true,
  return_tensors = true, tokenizer_class = true }
local only = { feature_size = 1, padding_side = "right" }

local function read_config(where, config)
  local o = {}
  for key, value in pairs(config) do
    if only[key] ~= nil and value ~= only[key] then
      fail("%s: %s = %s is not supported, only %s", where, key, value, only[key])
    elseif defaults[key] == nil and only[key] == nil and not harmless[key] then
      fail("%s: %s is not supported", where, key)
    end
  end
  for key, default in pairs(defaults) do
    local value = config[key]
    if value == nil then value = default end
    if type(value) ~= type(default) then
      fail("%s: %s is %s, expected a %s", where, key, value, type(default))
    end
    o[key] = value
  end
  return o
end

local function normalized(x)
  return (x - x:mean()) / (x:var { correction = 0 } + 1e-7):sqrt()
end

--- Returns the settings of a preprocessor_config.json, and a function(list) that takes sounds
--- [samples] and returns input_values [batch, samples] and, if the configuration has
--- return_attention_mask, which are sound (1) and which padding (0). Without it, padding counts in
--- the mean and the variance, as in transformers.
return function(where, config)
  local o = read_config(where, config)
  return o, function(list)
    local rows, longest = {}, 0
    for _, sound in ipairs(list) do longest = math.max(longest, sound:size(0)) end
    local mask = torch.zeros({ #list, longest }, { dtype = "int64" })
    for i, sound in ipairs(list) do
      mask[i - 1]:narrow(0, 0, sound:size(0)):fill_(1)
      if o.do_normalize and o.return_attention_mask then sound = normalized(sound) end
      rows[i] = torch.constant_pad_nd(sound, { 0, longest - sound:size(0) }, o.padding_value)
      if o.do_normalize and not o.return_attention_mask then rows[i] = normalized(rows[i]) end
    end
    return torch.stack(rows), o.return_attention_mask and mask or nil
  end
end
