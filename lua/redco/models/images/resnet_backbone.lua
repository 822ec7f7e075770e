--- ResNets as a part of models that find objects: with batch norms that are not trained, as
--- transformers has them, or timm, whose names those folders have that were made with it.
local batch_norm = require "redco.models.layers.batch_norm"
local blocks = require "redco.models.layers.blocks"
local complete_config = require "redco.models.config"
local fail = require "redco.fail"
local layers = require "redco.models.images.resnet_layers"
local names_of = require "redco.names_of"
local resnet = require "redco.models.families.resnet"

local backbone = {}

local bottleneck = { 256, 512, 1024, 2048 }
local basic = { 64, 128, 256, 512 }

-- The nets of timm.
local nets = {
  resnet18 = { sizes = basic, depths = { 2, 2, 2, 2 }, kind = "basic" },
  resnet34 = { sizes = basic, depths = { 3, 4, 6, 3 }, kind = "basic" },
  resnet50 = { sizes = bottleneck, depths = { 3, 4, 6, 3 }, kind = "bottleneck" },
  resnet101 = { sizes = bottleneck, depths = { 3, 4, 23, 3 }, kind = "bottleneck" },
  resnet152 = { sizes = bottleneck, depths = { 3, 8, 36, 3 }, kind = "bottleneck" },
}

local timm_names = {
  stem = function() return "conv1", "bn1" end,
  layer = function(stage, i) return ("layer%d.%d."):format(stage + 1, i) end,
  shortcut = function() return "downsample.0", "downsample.1" end,
  convolution = function(k) return "conv" .. k, "bn" .. k end,
}

-- Returns the name of timm's net, or false if the backbone is one of transformers.
local function timm_name(c)
  local own = c.backbone_config
  if own and own.model_type == "timm_backbone" then return own.backbone or "resnet50" end
  return not own and c.use_timm_backbone ~= false and (c.backbone or "resnet50")
end

local function last_is_read(c, own)
  local n = #own.depths
  local name, i = (own.out_features or {}), (own.out_indices or {})
  local last_name, last = name[#name], i[#i]
  if last_name and last_name ~= "stage" .. n or not last_name and last and last % (n + 1) ~= n then
    fail("%s: its backbone_config reads %s, expected the last stage, stage%d", c.model_type,
      last_name or "stage" .. last, n)
  end
end

--- Completes c.backbone_config. Raises an error if it is no ResNet.
function backbone.complete(c, is_file)
  local name, own = timm_name(c), c.backbone_config
  if name then
    local net = nets[name:gsub("%..*", "")]
    if not net then
      fail("%s: the backbone '%s' is not supported, only %s", c.model_type, name,
        table.concat(names_of(nets), ", "))
    end
    if c.dilation and net.kind == "basic" then
      fail("%s: dilation is for a backbone of bottlenecks, and %s is none", c.model_type, name)
    end
    return
  end
  own = own or { model_type = "resnet", out_features = { "stage4" } }
  if type(own) ~= "table" or own.model_type ~= "resnet" then
    fail("%s: its backbone_config has model_type '%s', only 'resnet' is supported", c.model_type,
      tostring(type(own) == "table" and own.model_type or own))
  end
  c.backbone_config = complete_config(resnet, own, is_file)
  last_is_read(c, c.backbone_config)
end

-- Returns the net of a complete configuration.
local function net_of(c)
  local name = timm_name(c)
  if not name then
    local own = c.backbone_config
    return layers.of_config(own, blocks.activation("resnet", own.hidden_act)), own.num_channels
  end
  local net = nets[name:gsub("%..*", "")]
  return { sizes = net.sizes, depths = net.depths, kind = net.kind, stem = 64, names = timm_names,
    activation = blocks.activation("resnet", "relu"), dilates = c.dilation }, c.num_channels
end

--- Declares the parameters. Returns the channels of the last stage.
function backbone.add_parameters(c, add)
  local net, n_channels = net_of(c)
  layers.add_parameters(net, n_channels, add, batch_norm.add)
  return net.sizes[#net.sizes]
end

--- Whether the weight of this name is not trained: the norms, and all but the last three stages of
--- timm's; of transformers' none is.
function backbone.is_frozen(name)
  return not name:find "^layer[234]%..*conv%d%.weight$"
    and not name:find "^layer[234]%..*downsample%.0%.weight$"
end

--- Returns a function(params, pixels, o) -> x [B, channels, H, W].
function backbone.new(c)
  local net, n_channels = net_of(c)
  local run = layers.new(net, function(params, name, x, o)
    return batch_norm.apply(params, name, x, { rng = o.rng })
  end)
  return function(params, pixels, o)
    if pixels:dim() ~= 4 or pixels:size(1) ~= n_channels then
      fail("%s: pixel_values are [%s], expected [batch, %d, height, width]", c.model_type,
        table.concat(pixels.shape, ", "), n_channels)
    end
    return run(setmetatable({}, { __index = function(_, name)
      local weight = params[name]
      return weight and backbone.is_frozen(name) and weight:detach() or weight
    end }), pixels, o)
  end
end

return backbone
