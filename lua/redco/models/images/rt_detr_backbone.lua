--- The ResNet of RT-DETR: three convolutions before the stages, and means in the shortcuts (He et
--- al., 2018). Its norms are not trained.
local batch_norm = require "redco.models.layers.batch_norm"
local blocks = require "redco.models.layers.blocks"
local complete_config = require "redco.models.config"
local fail = require "redco.fail"
local layers = require "redco.models.images.resnet_layers"

local backbone = {}

local resnet = {
  model_type = "rt_detr_resnet",
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
  optional = { "out_features", "out_indices", "stage_names", "id2label", "label2id", "num_labels",
    "problem_type" },
  check = layers.check,
  add_parameters = function() end,
}

--- Completes c.backbone_config.
function backbone.complete(c, is_file)
  local own = c.backbone_config or { model_type = "rt_detr_resnet", out_indices = { 2, 3, 4 } }
  if type(own) ~= "table" or own.model_type ~= "rt_detr_resnet" then
    fail("%s: its backbone_config has model_type '%s', only 'rt_detr_resnet' is supported",
      c.model_type, tostring(type(own) == "table" and own.model_type or own))
  end
  c.backbone_config = complete_config(resnet, own, is_file)
end

--- Returns the list of the stages, from 1, whose outputs are read.
function backbone.stages(own)
  local list = {}
  for i, name in ipairs(own.out_features or {}) do
    list[i] = tonumber(name:match "^stage(%d+)$")
      or fail("rt_detr_resnet: out_features has %s, expected stages", name)
  end
  if #list == 0 then
    for i, stage in ipairs(own.out_indices or { #own.depths }) do list[i] = stage end
  end
  for _, stage in ipairs(list) do
    if not own.hidden_sizes[stage] then
      fail("rt_detr_resnet: out_indices has %d, and there are %d stages", stage, #own.depths)
    end
  end
  return list
end

local function net_of(own)
  local net = layers.of_config(own, blocks.activation("rt_detr_resnet", own.hidden_act))
  net.n_stem, net.pools = 3, true
  net.names.stem = function(k)
    local name = ("embedder.embedder.%d."):format(k - 1)
    return name .. "convolution", name .. "normalization"
  end
  net.names.shortcut = function(pools)
    local name = pools and "shortcut.1." or "shortcut."
    return name .. "convolution", name .. "normalization"
  end
  return net
end

--- Declares the parameters.
function backbone.add_parameters(own, add)
  layers.add_parameters(net_of(own), own.num_channels, add, batch_norm.add)
end

--- Whether the weight of this name is not trained.
function backbone.is_frozen(name) return name:find "normalization%." ~= nil end

--- Returns a function(params, pixels, o) -> list of images [B, channels, H, W].
function backbone.new(own)
  local run = layers.new(net_of(own), function(params, name, x, o)
    return batch_norm.apply(params, name, x, { rng = o.rng })
  end)
  local stages = backbone.stages(own)
  return function(params, pixels, o)
    local kept, images = {}, {}
    run(setmetatable({}, { __index = function(_, name)
      local weight = params[name]
      return weight and backbone.is_frozen(name) and weight:detach() or weight
    end }), pixels, o, kept)
    for i, stage in ipairs(stages) do images[i] = kept[stage + 1] end
    return images
  end
end

return backbone
