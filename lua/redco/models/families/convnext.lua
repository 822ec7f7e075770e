--- ConvNeXt (Liu et al., 2022), as Hugging Face's `ConvNextForImageClassification` and
--- `ConvNextModel`.
local blocks = require "redco.models.layers.blocks"
local new_family = require "redco.models.kinds.convnext_like"

return new_family {
  model_type = "convnext", models = "ConvNeXt", class = "ConvNext", prefix = "convnext",
  more = { layer_scale_init_value = 1e-6 },
  add_to_layer = function(c, add, layer, size)
    if c.layer_scale_init_value == 0 then return end
    add(layer .. "layer_scale_parameter", { size }, blocks.constant(c.layer_scale_init_value))
  end,
  after_activation = function(_, _, x) return x end,
}
