--- ConvNeXt and its second version: stages of convolutions by channel and linear layers over
--- channels. A family is a row of facts.
local blocks = require "redco.models.layers.blocks"
local fail = require "redco.fail"
local new_images_family = require "redco.models.kinds.images_family"
local nn = require "redco.nn"

local kernel, eps = 7, 1e-6

local function check(c)
  if #c.depths ~= #c.hidden_sizes or #c.depths ~= c.num_stages then
    fail("%s: depths has %d numbers and hidden_sizes %d, expected num_stages, %d", c.model_type,
      #c.depths, #c.hidden_sizes, c.num_stages)
  end
end

-- Calls f(name, n_in, n_out, depth) for each stage.
local function each_stage(c, f)
  local n_in = c.hidden_sizes[1]
  for i, n_out in ipairs(c.hidden_sizes) do
    f(("encoder.stages.%d."):format(i - 1), n_in, n_out, c.depths[i], i > 1)
    n_in = n_out
  end
end

local function add_parameters(facts, c, add)
  local normal = blocks.normal(c.initializer_range)
  local function convolution(name, n_in, n_out, size)
    blocks.add_convolution(add, name, { n_out, n_in, size, size }, normal)
  end
  convolution("embeddings.patch_embeddings", c.num_channels, c.hidden_sizes[1], c.patch_size)
  blocks.add_layer_norm(add, "embeddings.layernorm", c.hidden_sizes[1])
  each_stage(c, function(stage, n_in, n_out, depth, is_halved)
    if is_halved or n_in ~= n_out then
      blocks.add_layer_norm(add, stage .. "downsampling_layer.0", n_in)
      convolution(stage .. "downsampling_layer.1", n_in, n_out, 2)
    end
    for i = 0, depth - 1 do
      local layer = ("%slayers.%d."):format(stage, i)
      convolution(layer .. "dwconv", 1, n_out, kernel)
      blocks.add_layer_norm(add, layer .. "layernorm", n_out)
      blocks.add_linear(add, layer .. "pwconv1", n_out, 4 * n_out, normal)
      blocks.add_linear(add, layer .. "pwconv2", 4 * n_out, n_out, normal)
      facts.add_to_layer(c, add, layer, n_out)
    end
  end)
  blocks.add_layer_norm(add, "layernorm", c.hidden_sizes[#c.hidden_sizes])
end

-- The norm over the channels of x [B, C, H, W].
local function norm(params, name, x)
  return blocks.layer_norm(params, name, x:permute { 0, 2, 3, 1 }, eps):permute { 0, 3, 1, 2 }
end

local function new_encoder(facts, c)
  local activation, n_layers = blocks.activation(c.model_type, c.hidden_act), 0
  for _, depth in ipairs(c.depths) do n_layers = n_layers + depth end

  return function(params, inputs, o, kept)
    local pixels, done = inputs.pixel_values, 0
    if pixels:dim() ~= 4 or pixels:size(1) ~= c.num_channels then
      fail("%s: pixel_values are [%s], expected [batch, %d, height, width]", c.model_type,
        table.concat(pixels.shape, ", "), c.num_channels)
    end
    local function keep(x) if kept then kept[#kept + 1] = x end end
    local x = blocks.patches(params, "embeddings.patch_embeddings", pixels,
      { stride = c.patch_size })
    x = norm(params, "embeddings.layernorm", x)
    keep(x)
    local function apply_layer(layer, y, p)
      local z = blocks.conv2d(params, layer .. "dwconv", y,
        { padding = math.floor(kernel / 2), groups = y:size(1) }):permute { 0, 2, 3, 1 }
      z = blocks.layer_norm(params, layer .. "layernorm", z, eps)
      z = activation(blocks.linear(params, layer .. "pwconv1", z, o))
      z = facts.after_activation(params, layer, z)
      z = blocks.linear(params, layer .. "pwconv2", z, o)
      local scale = params[layer .. "layer_scale_parameter"]
      if scale then z = z * scale end
      return y + blocks.drop_path(z:permute { 0, 3, 1, 2 }, p, o)
    end
    each_stage(c, function(stage, n_in, n_out, depth, is_halved)
      if is_halved or n_in ~= n_out then
        x = norm(params, stage .. "downsampling_layer.0", x)
        x = blocks.conv2d(params, stage .. "downsampling_layer.1", x,
          { stride = is_halved and 2 or 1 })
      end
      for i = 0, depth - 1 do
        local p = c.drop_path_rate * done / math.max(n_layers - 1, 1)
        x = nn.block(apply_layer, ("%slayers.%d."):format(stage, i), x, p)
        done = done + 1
      end
      keep(x)
    end)
    return x
  end
end

--- Returns a family. A row has model_type, models, class, prefix, `more` defaults, and
---   add_to_layer(c, add, layer, size): declares what its layers have besides
---   after_activation(params, layer, x): changes x [B, H, W, 4 * size] behind the activation
return function(row)
  local defaults = { num_channels = 3, patch_size = 4, num_stages = 4,
    hidden_sizes = { 96, 192, 384, 768 }, depths = { 3, 3, 9, 3 }, hidden_act = "gelu",
    initializer_range = 0.02, layer_norm_eps = 1e-12, drop_path_rate = 0.0, image_size = 224 }
  for key, value in pairs(row.more or {}) do defaults[key] = value end

  local function pooled(c)
    return function(params, x)
      return blocks.layer_norm(params, "layernorm", x:mean { -2, -1 }, c.layer_norm_eps)
    end
  end

  return new_images_family {
    model_type = row.model_type, models = row.models, class = row.class, prefix = row.prefix,
    defaults = defaults, check = check,
    optional = { "out_features", "out_indices", "stage_names" },
    add_parameters = function(c, add) add_parameters(row, c, add) end,
    new_encoder = function(c) return new_encoder(row, c) end,
    new_features = pooled,
    classified = function(c)
      return c.hidden_sizes[#c.hidden_sizes], blocks.normal(c.initializer_range), pooled(c)
    end,
  }
end
