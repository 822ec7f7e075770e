--- Swin Transformer (Liu et al., 2021), as Hugging Face's `SwinForImageClassification` and
--- `SwinModel`: attention in windows, which are shifted in every second layer; stages halve the
--- image. Shapes: B batch, H and W rows and columns of patches, s the side of a window.
local blocks = require "redco.models.blocks"
local fail = require "redco.fail"
local new_family = require "redco.models.images_family"
local nn = require "redco.nn"
local torch = require "redco.torch"

local hidden_score = -100  -- added to scores of patches that were not neighbours

local function check(c)
  if #c.depths ~= #c.num_heads then
    fail("swin: depths has %d numbers, num_heads %d", #c.depths, #c.num_heads)
  end
  for i, n_heads in ipairs(c.num_heads) do
    local size = c.embed_dim * 2 ^ (i - 1)
    if size % n_heads ~= 0 then
      fail("swin: stage %d has the size %d, which is not a multiple of num_heads, %d", i, size,
        n_heads)
    end
  end
end

-- Calls f(layer, size, n_heads, i, n) for each layer, `i` and `n` being its number in its stage and
-- in all, and `merge(stage, size)` between stages.
local function each_layer(c, f, merge)
  local n = 0
  for stage, depth in ipairs(c.depths) do
    local name, size = ("encoder.layers.%d."):format(stage - 1), c.embed_dim * 2 ^ (stage - 1)
    for i = 0, depth - 1 do
      f(("%sblocks.%d."):format(name, i), size, c.num_heads[stage], i, n)
      n = n + 1
    end
    if stage < #c.depths then merge(name .. "downsample.", size) end
  end
end

local function add_parameters(c, add)
  local normal, first = blocks.normal(c.initializer_range), c.embed_dim
  local function linear(name, n_in, n_out, bias)
    blocks.add_linear(add, name, n_in, n_out, normal, bias)
  end
  local patches = "embeddings.patch_embeddings.projection"
  add(patches .. ".weight", { first, c.num_channels, c.patch_size, c.patch_size }, normal)
  add(patches .. ".bias", { first }, blocks.zeros)
  blocks.add_layer_norm(add, "embeddings.norm", first)
  if c.use_absolute_embeddings then
    add("embeddings.position_embeddings",
      { 1, math.floor(c.image_size / c.patch_size) ^ 2 + 1, first }, blocks.zeros)
  end
  each_layer(c, function(layer, size, n_heads)
    local inner = math.floor(size * c.mlp_ratio)
    blocks.add_layer_norm(add, layer .. "layernorm_before", size)
    add(layer .. "attention.self.relative_position_bias_table",
      { (2 * c.window_size - 1) ^ 2, n_heads }, blocks.zeros)
    for _, part in ipairs { "query", "key", "value" } do
      linear(layer .. "attention.self." .. part, size, size, c.qkv_bias)
    end
    linear(layer .. "attention.output.dense", size, size)
    blocks.add_layer_norm(add, layer .. "layernorm_after", size)
    linear(layer .. "intermediate.dense", size, inner)
    linear(layer .. "output.dense", inner, size)
  end, function(merge, size)
    linear(merge .. "reduction", 4 * size, 2 * size, false)
    blocks.add_layer_norm(add, merge .. "norm", 4 * size)
  end)
  blocks.add_layer_norm(add, "layernorm", c.embed_dim * 2 ^ (#c.depths - 1))
end

-- [B, H, W, C] -> [B * windows, s * s, C]
local function to_windows(x, s)
  local batch, height, width, size = unpack(x.shape)
  return x:view { batch, height / s, s, width / s, s, size }:permute { 0, 1, 3, 2, 4, 5 }
    :reshape { -1, s * s, size }
end

-- The other way.
local function from_windows(x, s, height, width)
  local size = x:size(-1)
  return x:view { -1, height / s, width / s, s, s, size }:permute { 0, 1, 3, 2, 4, 5 }
    :reshape { -1, height, width, size }
end

-- The row of the table of biases for each pair of patches of a window [s * s * s * s].
local function places_of(s, device)
  local side = torch.arange(s, { device = device })
  local rows = side:view { -1, 1 }:expand { s, s }:reshape { -1 }
  local columns = side:view { 1, -1 }:expand { s, s }:reshape { -1 }
  local function distance(t) return t:unsqueeze(1) - t:unsqueeze(0) + (s - 1) end
  return (distance(rows) * (2 * s - 1) + distance(columns)):view { -1 }
end

-- The mask of shifted windows [windows, 1, s * s, s * s]: patches of other regions are far away.
local function shifted_mask(height, width, s, shift, like)
  local function regions(n)
    local places = torch.arange(n, { device = like.device })
    return places:ge(n - s):long() + places:ge(n - shift):long()
  end
  local region = regions(height):view { 1, -1, 1, 1 } * 3 + regions(width):view { 1, 1, -1, 1 }
  local windows = to_windows(region, s):squeeze(-1)
  local differs = windows:unsqueeze(1):ne(windows:unsqueeze(2)):unsqueeze(1)
  return torch.zeros_like(differs, { dtype = like.dtype }):masked_fill(differs, hidden_score)
end

local function padded(x, multiple)
  local rows, columns = -x:size(1) % multiple, -x:size(2) % multiple
  return rows + columns > 0 and torch.constant_pad_nd(x, { 0, 0, 0, columns, 0, rows }) or x
end

-- Attention of x [B, H, W, C] in windows.
local function attend(c, params, layer, x, n_heads, shift, o)
  local height, width, s = x:size(1), x:size(2), c.window_size
  local name = layer .. "attention.self."
  x = padded(x, s)
  local rows, columns = x:size(1), x:size(2)
  if shift > 0 then x = x:roll({ -shift, -shift }, { 1, 2 }) end
  local windows = to_windows(x, s)
  local function heads(part)
    return blocks.split_heads(blocks.linear(params, name .. part, windows, o), n_heads)
  end
  local bias = params[name .. "relative_position_bias_table"]
    :index_select(0, places_of(s, x.device)):view { s * s, s * s, n_heads }
    :permute { 2, 0, 1 }:unsqueeze(0)
  if shift > 0 then
    local mask = shifted_mask(rows, columns, s, shift, x)
    bias = (bias + mask):tile({ windows:size(0) / mask:size(0), 1, 1, 1 })
  end
  local y = blocks.attention(heads "query", heads "key", heads "value",
    { mask = bias, dropout = c.attention_probs_dropout_prob }, o)
  y = blocks.linear(params, layer .. "attention.output.dense", y, o)
  y = from_windows(blocks.dropout(y, c.attention_probs_dropout_prob, o), s, rows, columns)
  if shift > 0 then y = y:roll({ shift, shift }, { 1, 2 }) end
  return y:narrow(1, 0, height):narrow(2, 0, width)
end

-- Puts each square of four patches together.
local function merged(params, name, x, o)
  x = padded(x, 2)
  local parts = {}
  for column = 0, 1 do
    for row = 0, 1 do
      parts[#parts + 1] = x:slice(1, row, nil, 2):slice(2, column, nil, 2)
    end
  end
  local y = blocks.layer_norm(params, name .. "norm", torch.cat(parts, -1), 1e-5)
  return blocks.linear(params, name .. "reduction", y, o)
end

local function embed(c, params, pixels, o)
  if pixels:dim() ~= 4 or pixels:size(1) ~= c.num_channels then
    fail("swin: pixel_values are [%s], expected [batch, %d, height, width]",
      table.concat(pixels.shape, ", "), c.num_channels)
  end
  local name = "embeddings.patch_embeddings.projection"
  local weight = params[name .. ".weight"]
  local rows, columns = -pixels:size(2) % c.patch_size, -pixels:size(3) % c.patch_size
  if rows + columns > 0 then pixels = torch.constant_pad_nd(pixels, { 0, columns, 0, rows }) end
  local x = torch.conv2d(pixels:to(weight.dtype), weight, params[name .. ".bias"],
    { c.patch_size, c.patch_size }):permute { 0, 2, 3, 1 }
  x = blocks.layer_norm(params, "embeddings.norm", x, 1e-5)
  local places = params["embeddings.position_embeddings"]
  if places then
    local n = places:size(1)
    if x:size(1) * x:size(2) ~= n then
      fail("swin: pixel_values are [%s]: the model has positions for %d pixels a side",
        table.concat(pixels.shape, ", "), c.image_size)
    end
    x = x + places:view { 1, x:size(1), x:size(2), -1 }
  end
  return blocks.dropout(x, c.hidden_dropout_prob, o)
end

local function new_encoder(c)
  local activation, n_layers = blocks.activation("swin", c.hidden_act), 0
  for _, depth in ipairs(c.depths) do n_layers = n_layers + depth end

  return function(params, inputs, o, kept)
    local x = embed(c, params, inputs.pixel_values, o)
    local function keep() if kept then kept[#kept + 1] = x:flatten(1, 2) end end
    keep()
    local function apply_layer(layer, y, n_heads, i, n)
      local function norm(name, z)
        return blocks.layer_norm(params, layer .. name, z, c.layer_norm_eps)
      end
      local least, s = math.min(y:size(1), y:size(2)), c.window_size
      if least < s then
        fail("swin: a stage has %d patches a side, fewer than window_size, %d: give larger images",
          least, s)
      end
      local shift = i % 2 == 1 and least > s and math.floor(s / 2) or 0
      local seen = attend(c, params, layer, norm("layernorm_before", y), n_heads, shift, o)
      y = y + blocks.drop_path(seen, c.drop_path_rate * n / math.max(n_layers - 1, 1), o)
      local inner = blocks.linear(params, layer .. "intermediate.dense",
        norm("layernorm_after", y), o)
      inner = blocks.linear(params, layer .. "output.dense", activation(inner), o)
      return y + blocks.dropout(inner, c.hidden_dropout_prob, o)
    end
    each_layer(c, function(layer, _, n_heads, i, n)
      x = nn.block(apply_layer, layer, x, n_heads, i, n)
    end, function(name)
      x = merged(params, name, x, o)
      keep()
    end)
    keep()
    return blocks.layer_norm(params, "layernorm", x:flatten(1, 2), c.layer_norm_eps)
  end
end

local function new_features() return function(_, x) return x:mean { 1 } end end

return new_family {
  model_type = "swin",
  models = "Swin Transformer",
  class = "Swin",
  prefix = "swin",
  check = check,
  defaults = {
    image_size = 224,
    patch_size = 4,
    num_channels = 3,
    embed_dim = 96,
    depths = { 2, 2, 6, 2 },
    num_heads = { 3, 6, 12, 24 },
    window_size = 7,
    mlp_ratio = 4.0,
    qkv_bias = true,
    hidden_dropout_prob = 0.0,
    attention_probs_dropout_prob = 0.0,
    drop_path_rate = 0.1,
    hidden_act = "gelu",
    use_absolute_embeddings = false,
    initializer_range = 0.02,
    layer_norm_eps = 1e-5,
  },
  optional = { "encoder_stride", "out_features", "out_indices", "stage_names", "num_layers",
    "hidden_size", "path_norm" },
  ignored = { "%.relative_position_index$", "%.attn_mask$", "mask_token$" },
  add_parameters = add_parameters,
  new_encoder = new_encoder,
  new_features = new_features,
  classified = function(c)
    return c.embed_dim * 2 ^ (#c.depths - 1), blocks.normal(c.initializer_range), new_features()
  end,
}
