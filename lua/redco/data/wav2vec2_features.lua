--- Sound for models of samples, as of transformers' Wav2Vec2FeatureExtractor: rows of one length
--- with mean 0 and variance 1.
local arguments = require "redco.arguments"
local read_settings = require "redco.data.feature_settings"
local torch = require "redco.torch"

local facts = {
  defaults = { sampling_rate = 16000, padding_value = 0, do_normalize = true,
    return_attention_mask = false },
  counts = { sampling_rate = true },
  harmless = { "tokenizer_class" },
  only = { feature_size = 1, padding_side = "right" },
}

local function normalized(x)
  return (x - x:mean()) / (x:var { correction = 0 } + 1e-7):sqrt()
end

local extractor = { options = arguments("feature_extractor", {}, { "sampling_rate" }) }

--- Returns the settings of a preprocessor_config.json, and a function(list) that takes sounds
--- [samples] and returns input_values [batch, samples] and, if the configuration has
--- return_attention_mask, which are sound (1) and which padding (0). Without it, padding counts in
--- the mean and the variance, as in transformers.
function extractor.new(where, config)
  local o = read_settings(where, config, facts)
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

return extractor
