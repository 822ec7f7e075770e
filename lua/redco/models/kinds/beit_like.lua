--- BEiT and data2vec's model of images: encoders of patches whose attention knows the distances
--- between rows and columns. A family is a row of names. Shapes: B batch, H and W rows and columns
--- of patches, T = 1 + H * W tokens.
local blocks = require "redco.models.layers.blocks"
local fail = require "redco.fail"
local new_images_family = require "redco.models.kinds.images_family"
local nn = require "redco.nn"
local torch = require "redco.torch"

local n_special = 3  -- rows of a table for the distances from, to and of the first token

local function check(c) blocks.check_multiple(c, "hidden_size", "num_attention_heads") end

local function side_of(c) return math.floor(c.image_size / c.patch_size) end

local function layer_name(i) return ("encoder.layer.%d."):format(i) end

local function add_parameters(c, add)
  local size, normal, side = c.hidden_size, blocks.normal(c.initializer_range), side_of(c)
  local function linear(name, n_in, n_out, bias)
    blocks.add_linear(add, name, n_in, n_out, normal, bias)
  end
  local function table_of_distances(name)
    add(name .. "relative_position_bias.relative_position_bias_table",
      { (2 * side - 1) ^ 2 + n_special, c.num_attention_heads }, blocks.zeros)
  end
  add("embeddings.cls_token", { 1, 1, size }, blocks.zeros)
  if c.use_mask_token then add("embeddings.mask_token", { 1, 1, size }, blocks.zeros) end
  if c.use_absolute_position_embeddings then
    add("embeddings.position_embeddings", { 1, side ^ 2 + 1, size }, blocks.zeros)
  end
  blocks.add_convolution(add, "embeddings.patch_embeddings.projection",
    { size, c.num_channels, c.patch_size, c.patch_size }, normal)
  if c.use_shared_relative_position_bias then table_of_distances "encoder." end
  for i = 0, c.num_hidden_layers - 1 do
    local layer = layer_name(i)
    for _, part in ipairs { "query", "key", "value" } do
      linear(layer .. "attention.attention." .. part, size, size, part ~= "key")
    end
    if c.use_relative_position_bias then table_of_distances(layer .. "attention.attention.") end
    linear(layer .. "attention.output.dense", size, size)
    linear(layer .. "intermediate.dense", size, c.intermediate_size)
    linear(layer .. "output.dense", c.intermediate_size, size)
    blocks.add_layer_norm(add, layer .. "layernorm_before", size)
    blocks.add_layer_norm(add, layer .. "layernorm_after", size)
    if c.layer_scale_init_value > 0 then
      for k = 1, 2 do
        add(("%slambda_%d"):format(layer, k), { size }, blocks.constant(c.layer_scale_init_value))
      end
    end
  end
  if not c.use_mean_pooling then blocks.add_layer_norm(add, "layernorm", size) end
end

local function add_pooler(c, add)
  if c.use_mean_pooling then blocks.add_layer_norm(add, "pooler.layernorm", c.hidden_size) end
end

-- Returns the parameters that a folder lacks if it was saved without a pooler.
local function new_pooler(prefix)
  local name = prefix .. "pooler.layernorm."
  return { [name .. "weight"] = true, [name .. "bias"] = true }
end

-- Returns the row of a table of distances for each pair of tokens, [T * T].
local function places_of(height, width, device)
  local n, n_rows = height * width, (2 * height - 1) * (2 * width - 1) + n_special
  local options = { dtype = "int64", device = device }
  local rows = torch.arange(height, options):view { -1, 1 }:expand { height, width }:reshape { -1 }
  local columns = torch.arange(width, options):view { 1, -1 }:expand { height, width }
    :reshape { -1 }
  local function distance(t, most) return t:unsqueeze(1) - t:unsqueeze(0) + (most - 1) end
  local patches = distance(rows, height) * (2 * width - 1) + distance(columns, width)
  local function all(value, ...) return torch.full({ ... }, value, options) end
  local first = torch.cat({ all(n_rows - 1, 1, 1), all(n_rows - 3, 1, n) }, 1)
  return torch.cat({ first, torch.cat({ all(n_rows - 2, n, 1), patches }, 1) }, 0):view { -1 }
end

-- Returns the bias of the scores from a table, [1, heads, T, T]. Resizes the table for images of
-- another size than the table's.
local function bias_of(c, weight, height, width, places)
  local old, n_heads = 2 * side_of(c) - 1, c.num_attention_heads
  local new_height, new_width = 2 * height - 1, 2 * width - 1
  if new_height ~= old or new_width ~= old then
    local grid = weight:narrow(0, 0, old * old):view { 1, old, old, n_heads }
      :permute { 0, 3, 1, 2 }
    grid = torch.upsample_bilinear2d(grid:to(blocks.wide_dtype(grid)), { new_height, new_width },
      false)
    weight = torch.cat({ grid:flatten(2):squeeze(0):t():to(weight.dtype),
      weight:narrow(0, old * old, n_special) }, 0)
  end
  local length = height * width + 1
  return weight:index_select(0, places):view { length, length, n_heads }:permute { 2, 0, 1 }
    :unsqueeze(0)
end

local function positions_of(c, positions, height, width)
  local side = side_of(c)
  if height == side and width == side then return positions end
  local grid = positions:narrow(1, 1, side * side):view { 1, side, side, -1 }
    :permute { 0, 3, 1, 2 }
  grid = torch.upsample_bicubic2d(grid:to(blocks.wide_dtype(grid)), { height, width }, false)
  return torch.cat({ positions:narrow(1, 0, 1),
    grid:flatten(2):transpose(1, 2):to(positions.dtype) }, 1)
end

-- Returns the embeddings [B, T, size], and the rows and columns of patches.
local function embed(c, params, pixels, o)
  local shape = pixels.shape
  if #shape ~= 4 or shape[2] ~= c.num_channels or shape[3] < c.patch_size
    or shape[4] < c.patch_size then
    fail("%s: pixel_values are [%s], expected [batch, %d, height, width] of at least %d pixels",
      c.model_type, table.concat(shape, ", "), c.num_channels, c.patch_size)
  end
  local patches = blocks.patches(params, "embeddings.patch_embeddings.projection", pixels,
    { stride = c.patch_size })
  local height, width = patches:size(2), patches:size(3)
  local first = params["embeddings.cls_token"]:expand { pixels:size(0), 1, c.hidden_size }
  local x = torch.cat({ first, patches:flatten(2):transpose(1, 2) }, 1)
  local positions = params["embeddings.position_embeddings"]
  if positions then x = x + positions_of(c, positions, height, width) end
  return blocks.dropout(x, c.hidden_dropout_prob, o), height, width
end

local function new_encoder(c)
  local activation, n_layers = blocks.activation(c.model_type, c.hidden_act), c.num_hidden_layers

  return function(params, inputs, o, kept)
    local function keep(x) if kept then kept[#kept + 1] = x end end
    local function drop(x) return blocks.dropout(x, c.hidden_dropout_prob, o) end
    local x, height, width = embed(c, params, inputs.pixel_values, o)
    keep(x)
    local places = places_of(height, width, x.device)
    local function bias(name)
      local weight = params[name .. "relative_position_bias.relative_position_bias_table"]
      return weight and bias_of(c, weight, height, width, places)
    end
    local shared = bias "encoder."

    local function attend(name, y)
      local function heads(part)
        return blocks.split_heads(blocks.linear(params, name .. "attention." .. part, y, o),
          c.num_attention_heads)
      end
      local own = bias(name .. "attention.")
      y = blocks.attention(heads "query", heads "key", heads "value", {
        mask = own and shared and own + shared or own or shared,
        dropout = c.attention_probs_dropout_prob,
      }, o)
      return drop(blocks.linear(params, name .. "output.dense", y, o))
    end

    local function apply_layer(i, y)
      local layer, p = layer_name(i), c.drop_path_rate * i / math.max(n_layers - 1, 1)
      local function norm(name)
        return blocks.layer_norm(params, layer .. name, y, c.layer_norm_eps)
      end
      local function added(k, branch)
        local scale = params[("%slambda_%d"):format(layer, k)]
        return y + blocks.drop_path(scale and branch * scale or branch, p, o)
      end
      y = added(1, attend(layer .. "attention.", norm "layernorm_before"))
      local inner = blocks.linear(params, layer .. "intermediate.dense", norm "layernorm_after", o)
      return added(2, drop(blocks.linear(params, layer .. "output.dense", activation(inner), o)))
    end
    for i = 0, n_layers - 1 do
      x = nn.block(apply_layer, i, x)
      keep(x)
    end
    if c.use_mean_pooling then return x end
    return blocks.layer_norm(params, "layernorm", x, c.layer_norm_eps)
  end
end

-- The mean of the patches, or the first token.
local function new_features(c)
  return function(params, x)
    if not c.use_mean_pooling then return x:select(1, 0) end
    return blocks.layer_norm(params, "pooler.layernorm",
      x:narrow(1, 1, x:size(1) - 1):mean { 1 }, c.layer_norm_eps)
  end
end

local function unchanged(_, x) return x end

--- Returns a family. A row has model_type, models, class (the begin of the names of its classes),
--- prefix, and has_pooler: whether the class without a head has a pooler. Without it, that returns
--- hidden states.
return function(row)
  local mask = "embeddings.mask_token"
  local family = new_images_family {
    model_type = row.model_type, models = row.models, class = row.class, prefix = row.prefix,
    check = check,
    defaults = {
      hidden_size = 768,
      num_hidden_layers = 12,
      num_attention_heads = 12,
      intermediate_size = 3072,
      hidden_act = "gelu",
      hidden_dropout_prob = 0.0,
      attention_probs_dropout_prob = 0.0,
      initializer_range = 0.02,
      layer_norm_eps = 1e-12,
      image_size = 224,
      patch_size = 16,
      num_channels = 3,
      use_mask_token = false,
      use_absolute_position_embeddings = false,
      use_relative_position_bias = false,
      use_shared_relative_position_bias = false,
      layer_scale_init_value = 0.1,
      drop_path_rate = 0.1,
      use_mean_pooling = true,
    },
    -- Keys of classes that are not supported.
    optional = { "vocab_size", "out_indices", "out_features", "stage_names", "pool_scales",
      "use_auxiliary_head", "auxiliary_loss_weight", "auxiliary_channels", "auxiliary_num_convs",
      "auxiliary_concat_input", "semantic_loss_ignore_index", "add_fpn", "reshape_hidden_states",
      "segmentation_indices" },
    -- Only training with masked images reads this parameter.
    buffers = { [mask] = true, [row.prefix .. "." .. mask] = true },
    new_if_missing = row.has_pooler and new_pooler "" or nil,
    ignored = { "%.relative_position_index$", "^lm_head%.", "^layernorm%.", "^pooler%." },
    add_parameters = add_parameters,
    add_pooler = row.has_pooler and add_pooler or nil,
    new_encoder = new_encoder,
    new_features = row.has_pooler and new_features or function() return unchanged end,
    classified = function(c)
      return c.hidden_size, blocks.normal(c.initializer_range), new_features(c)
    end,
  }

  local add_all = family.add_parameters
  function family.add_parameters(c, add)
    add_all(c, add)
    add_pooler(c, blocks.add_with_prefix(add, row.prefix .. "."))
  end
  family.new_if_missing = new_pooler(row.prefix .. ".")

  return family
end
