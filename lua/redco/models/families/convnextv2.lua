--- ConvNeXt V2 (Woo et al., 2023), as Hugging Face's `ConvNextV2ForImageClassification` and
--- `ConvNextV2Model`: channels are scaled by their share of the image's energy.
local blocks = require "redco.models.layers.blocks"
local new_family = require "redco.models.kinds.convnext_like"

return new_family {
  model_type = "convnextv2", models = "ConvNeXt V2", class = "ConvNextV2", prefix = "convnextv2",
  add_to_layer = function(_, add, layer, size)
    for _, part in ipairs { "grn.weight", "grn.bias" } do
      add(layer .. part, { 1, 1, 1, 4 * size }, blocks.zeros)
    end
  end,
  after_activation = function(params, layer, x)
    local norms = x:norm(2, { 1, 2 }, true)
    norms = norms / (norms:mean({ -1 }, true) + 1e-6)
    return params[layer .. "grn.weight"] * (x * norms) + params[layer .. "grn.bias"] + x
  end,
}
