--- Whisper's encoder of log-mel spectra: two convolutions, positions, and layers.
local blocks = require "redco.models.layers.blocks"
local fail = require "redco.fail"
local layers = require "redco.models.sound.whisper_layers"
local masks = require "redco.models.layers.masks"
local torch = require "redco.torch"

local encoder = {}

--- The name of the positions, which are not trained.
encoder.positions = "embed_positions.weight"

--- Declares the parameters. init_positions(t, generator) fills the positions.
function encoder.add_parameters(c, add, init_positions)
  for i, n_in in ipairs { c.num_mel_bins, c.d_model } do
    blocks.add_convolution(add, "conv" .. i, { c.d_model, n_in, 3 }, blocks.normal(c.init_std))
  end
  add(encoder.positions, { c.max_source_positions, c.d_model }, init_positions)
  layers.add_parameters(c, "encoder", add)
end

local function check_features(c, features)
  if not torch.is_tensor(features) or features:dim() ~= 3 or features:size(1) ~= c.num_mel_bins
    or features:size(2) ~= 2 * c.max_source_positions then
    fail("%s: inputs.input_features are %s, expected [batch, %d, %d], as from "
      .. "redco.data.feature_extractor", c.model_type, torch.is_tensor(features)
      and ("[%s]"):format(table.concat(features.shape, ", ")) or tostring(features),
      c.num_mel_bins, 2 * c.max_source_positions)
  end
end

--- Returns function(params, features, o, seen, kept) -> hidden states [batch, positions, size].
--- Layers attend only to positions where `seen` [batch, positions] is true, or to all without it.
--- pool(x) changes the input of the last norm.
function encoder.new(c, pool)
  local run = layers.new(c, "encoder")
  return function(params, features, o, seen, kept)
    check_features(c, features)
    local function convolved(name, x, stride)
      local weight = params[name .. ".weight"]
      return torch.gelu(torch.conv1d(x:to(weight.dtype), weight, params[name .. ".bias"],
        { stride = stride, padding = 1 }))
    end
    local x = convolved("conv2", convolved("conv1", features, 1), 2):transpose(1, 2)
    -- transformers writes Voxtral's positions as float32 beside weights of another type.
    x = (x + params[encoder.positions]:detach()):to(x.dtype)
    local mask = { mask = masks.padding(seen, x.dtype) }
    x = run(params, blocks.dropout(x, c.dropout, o), o, mask, nil, kept)
    return layers.last_norm(params, pool and pool(x) or x)
  end
end

return encoder
