--- ResNet (He et al., 2015), as Hugging Face's `ResNetForImageClassification` and `ResNetModel`.
local batch_norm = require "redco.models.layers.batch_norm"
local blocks = require "redco.models.layers.blocks"
local fail = require "redco.fail"
local layers = require "redco.models.images.resnet_layers"
local new_family = require "redco.models.kinds.images_family"
local nn = require "redco.nn"

-- Initialises the bias of a layer of n inputs as PyTorch does.
local function bias_of(n)
  return function(t, generator)
    return nn.init.uniform_(t, { a = -n ^ -0.5, b = n ^ -0.5, generator = generator })
  end
end

local function pooled() return function(_, x) return x:mean { 2, 3 } end end

return new_family {
  model_type = "resnet",
  models = "ResNet",
  class = "ResNet",
  prefix = "resnet",
  check = layers.check,
  defaults = {
    num_channels = 3,
    embedding_size = 64,
    hidden_sizes = { 256, 512, 1024, 2048 },
    depths = { 3, 4, 6, 3 },
    layer_type = "bottleneck",
    hidden_act = "relu",
    downsample_in_first_stage = false,
    downsample_in_bottleneck = false,
  },
  optional = { "image_size", "out_features", "out_indices", "stage_names" },
  ignored = { batch_norm.ignored },
  classifier = "classifier.1",
  add_parameters = function(c, add)
    layers.add_parameters(layers.of_config(c), c.num_channels, add, batch_norm.add)
  end,
  new_encoder = function(c)
    local activation = blocks.activation("resnet", c.hidden_act)
    local run = layers.new(layers.of_config(c, activation), batch_norm.apply)
    return function(params, inputs, o, kept)
      local pixels = inputs.pixel_values
      if pixels:dim() ~= 4 or pixels:size(1) ~= c.num_channels then
        fail("resnet: pixel_values are [%s], expected [batch, %d, height, width]",
          table.concat(pixels.shape, ", "), c.num_channels)
      end
      return run(params, pixels, o, kept)
    end
  end,
  new_features = pooled,
  classified = function(c)
    local size = c.hidden_sizes[#c.hidden_sizes]
    return size, blocks.of_fan_in, pooled(), bias_of(size)
  end,
}
