--- SAM 2's model of images (Ravi et al., 2024), as Hugging Face's `Sam2VisionModel`: the stages of
--- a Hiera become images of one number of channels, to which smaller ones are added.
local blocks = require "redco.models.layers.blocks"
local complete_config = require "redco.models.config"
local fail = require "redco.fail"
local hiera = require "redco.models.families.sam2_hiera_det_model"
local torch = require "redco.torch"

local of_backbone = "backbone."

local vision = {
  model_type = "sam2_vision_model",
  models = "the images' half of SAM 2",
  architecture = "Sam2VisionModel",
  task = "features",
  base_model_prefix = "sam2",
  inputs = { "pixel_values" },
  remarks = "gives images of features, the largest first",
  nullable = { "backbone_config" },
  defaults = {
    backbone_config = {},
    backbone_channel_list = { 768, 384, 192, 96 },
    fpn_hidden_size = 256,
    fpn_kernel_size = 1,
    fpn_stride = 1,
    fpn_padding = 0,
    fpn_top_down_levels = { 2, 3 },
    num_feature_levels = 3,
    initializer_range = 0.02,
  },
  optional = { "backbone_feature_sizes", "hidden_act", "layer_norm_eps" },
  lists = { backbone_feature_sizes = true },
  least = { fpn_hidden_size = 1, fpn_kernel_size = 1, fpn_stride = 1, fpn_padding = 0,
    num_feature_levels = 1 },
}

function vision.config_parts() return { backbone_config = hiera } end

function vision.complete(c, is_file)
  local own = c.backbone_config or {}
  if own.model_type and own.model_type ~= hiera.model_type then
    fail("%s: its backbone_config has model_type '%s', only '%s' is supported", c.model_type,
      own.model_type, hiera.model_type)
  end
  c.backbone_config = complete_config(hiera, own, is_file)
  c.backbone_feature_sizes = c.backbone_feature_sizes or { { 256, 256 }, { 128, 128 }, { 64, 64 } }
end

function vision.check(c)
  local sizes = c.backbone_config.embed_dim_per_stage
  local n = #sizes
  for i, size in ipairs(c.backbone_channel_list) do
    if size ~= sizes[n + 1 - i] then
      fail("%s: backbone_channel_list is %s, expected the numbers of its backbone_config's "
        .. "embed_dim_per_stage, %s, in the opposite order", c.model_type,
        table.concat(c.backbone_channel_list, ", "), table.concat(sizes, ", "))
    end
  end
  if #c.backbone_channel_list ~= n then
    fail("%s: backbone_channel_list has %d numbers, and there are %d stages", c.model_type,
      #c.backbone_channel_list, n)
  end
  if c.num_feature_levels > n then
    fail("%s: num_feature_levels is %d, and there are %d stages", c.model_type,
      c.num_feature_levels, n)
  end
end

function vision.add_parameters(c, add)
  local normal, side = blocks.normal(c.initializer_range), c.fpn_kernel_size
  hiera.add_parameters(c.backbone_config, blocks.add_with_prefix(add, of_backbone))
  for i, n_in in ipairs(c.backbone_channel_list) do
    blocks.add_convolution(add, "neck.convs." .. i - 1,
      { c.fpn_hidden_size, n_in, side, side }, normal)
  end
end

--- Returns function(params, pixels, o) -> list of images [B, fpn_hidden_size, H, W], the largest
--- first, and the list of the backbone's stages.
function vision.new_images(c)
  local see, adds_smaller = hiera.new_stages(c.backbone_config), {}
  local options = { stride = c.fpn_stride, padding = c.fpn_padding }
  local n = #c.backbone_channel_list
  for _, level in ipairs(c.fpn_top_down_levels) do adds_smaller[level + 1] = level < n - 1 end
  return function(params, pixels, o)
    local stages, images = see(blocks.with_prefix(params, of_backbone), pixels, o), {}
    for i = n, 1, -1 do
      local x = blocks.conv2d(params, "neck.convs." .. n - i, stages[i]:permute { 0, 3, 1, 2 },
        options)
      local smaller = adds_smaller[i] and images[i + 1]
      if smaller then
        if x:size(2) ~= 2 * smaller:size(2) or x:size(3) ~= 2 * smaller:size(3) then
          fail("%s: stage %d has %d x %d places, expected twice the %d x %d of the next one: give "
            .. "an image of another size", c.model_type, i, x:size(2), x:size(3), smaller:size(2),
            smaller:size(3))
        end
        x = x + torch.upsample_nearest2d(smaller, { x:size(2), x:size(3) })
      end
      images[i] = x
    end
    local kept = {}
    for i = 1, c.num_feature_levels do kept[i] = images[i] end
    return kept, stages
  end
end

function vision.new_functions(c)
  local run = vision.new_images(c)
  return {
    output = function(params, inputs, o)
      return unpack((run(params, inputs.pixel_values, o)))
    end,
    hidden_states = function(params, inputs, o)
      local _, stages = run(params, inputs.pixel_values, o)
      return stages[#stages], stages
    end,
  }
end

return vision
