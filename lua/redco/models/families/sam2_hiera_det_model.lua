--- The Hiera of SAM 2 (Ryali et al., 2023; Ravi et al., 2024), as Hugging Face's
--- `Sam2HieraDetModel`: stages of attention in windows, in some layers to the whole image. The
--- first layer of a stage has fewer queries than keys. Shapes: B images, H and W rows and columns
--- of places, s the side of a window.
local blocks = require "redco.models.layers.blocks"
local fail = require "redco.fail"
local nn = require "redco.nn"
local torch = require "redco.torch"

local hiera = {
  model_type = "sam2_hiera_det_model",
  models = "the Hiera of SAM 2",
  architecture = "Sam2HieraDetModel",
  task = "features",
  base_model_prefix = "sam2",
  inputs = { "pixel_values" },
  remarks = "gives the places of the last stage, [batch, rows, columns, size]",
  defaults = {
    hidden_size = 96,
    num_channels = 3,
    patch_kernel_size = { 7, 7 },
    patch_stride = { 4, 4 },
    patch_padding = { 3, 3 },
    query_stride = { 2, 2 },
    window_positional_embedding_background_size = { 7, 7 },
    num_query_pool_stages = 3,
    blocks_per_stage = { 1, 2, 7, 2 },
    embed_dim_per_stage = { 96, 192, 384, 768 },
    num_attention_heads_per_stage = { 1, 2, 4, 8 },
    window_size_per_stage = { 8, 4, 14, 7 },
    global_attention_blocks = { 5, 7, 9 },
    mlp_ratio = 4.0,
    hidden_act = "gelu",
    layer_norm_eps = 1e-6,
    initializer_range = 0.02,
  },
  -- Version 5 of transformers writes most of these keys into every part.
  optional = { "image_size", "num_attention_heads", "_name_or_path", "chunk_size_feed_forward",
    "id2label", "label2id", "output_attentions", "output_hidden_states", "problem_type",
    "return_dict" },
  lists = { image_size = true },
}

hiera.least = { num_query_pool_stages = 0 }

-- The least value in each list. Lists have one number per stage, or one for rows and columns each.
local of_stages = { blocks_per_stage = 1, embed_dim_per_stage = 1,
  num_attention_heads_per_stage = 1, window_size_per_stage = 1 }
local of_sides = { patch_kernel_size = 1, patch_stride = 1, patch_padding = 0, query_stride = 1,
  window_positional_embedding_background_size = 1 }
local most = 65536

local function check_list(c, key, least, length, what)
  if #c[key] ~= length or length == 0 then
    fail("%s: %s has %d numbers, expected %s", c.model_type, key, #c[key], what)
  end
  for _, n in ipairs(c[key]) do
    if n < least or n > most or n % 1 ~= 0 then
      fail("%s: %s has %s, expected whole numbers from %d to %d", c.model_type, key, n, least, most)
    end
  end
end

function hiera.check(c)
  local n_stages = #c.blocks_per_stage
  for key, least in pairs(of_stages) do
    check_list(c, key, least, n_stages, ("as many as blocks_per_stage, %d"):format(n_stages))
  end
  for key, least in pairs(of_sides) do
    check_list(c, key, least, 2, "2, of rows and columns")
  end
  if c.query_stride[1] ~= c.query_stride[2] then
    fail("%s: query_stride is %d, %d, expected equal numbers", c.model_type, unpack(c.query_stride))
  end
  if c.hidden_size ~= c.embed_dim_per_stage[1] then
    fail("%s: hidden_size is %d, expected the first of embed_dim_per_stage, %d", c.model_type,
      c.hidden_size, c.embed_dim_per_stage[1])
  end
  for i, size in ipairs(c.embed_dim_per_stage) do
    local n_heads = c.num_attention_heads_per_stage[i]
    if size % n_heads ~= 0 then
      fail("%s: embed_dim_per_stage[%d], %d, is not a multiple of its number of heads, %d",
        c.model_type, i, size, n_heads)
    end
    if i > 1 and i <= c.num_query_pool_stages + 1 and size == c.embed_dim_per_stage[i - 1] then
      fail("%s: stage %d has fewer places than the one before, and needs another number in "
        .. "embed_dim_per_stage than %d", c.model_type, i, size)
    end
  end
end

-- Returns the list of layers: name, sizes before and after, number of heads, side of the windows
-- (nil for the whole image), `stride` if the layer has fewer queries, and whether it ends a stage.
local function layers_of(c)
  local list, is_global = {}, {}
  for _, i in ipairs(c.global_attention_blocks) do is_global[i] = true end
  for stage, depth in ipairs(c.blocks_per_stage) do
    for k = 1, depth do
      local before = k == 1 and math.max(stage - 1, 1) or stage
      local has_fewer = k == 1 and stage > 1 and stage <= c.num_query_pool_stages + 1
      list[#list + 1] = {
        name = ("blocks.%d."):format(#list), n_heads = c.num_attention_heads_per_stage[stage],
        n_in = c.embed_dim_per_stage[before], size = c.embed_dim_per_stage[stage],
        window = not is_global[#list] and c.window_size_per_stage[before] or nil,
        stride = has_fewer and c.query_stride[1] or nil, ends_stage = k == depth,
      }
    end
  end
  return list
end

function hiera.add_parameters(c, add)
  local normal, size = blocks.normal(c.initializer_range), c.hidden_size
  local function linear(name, n_in, n_out) blocks.add_linear(add, name, n_in, n_out, normal) end
  local rows, columns = unpack(c.window_positional_embedding_background_size)
  local s, patch = c.window_size_per_stage[1], c.patch_kernel_size
  add("pos_embed", { 1, size, rows, columns }, blocks.zeros)
  add("pos_embed_window", { 1, size, s, s }, blocks.zeros)
  blocks.add_convolution(add, "patch_embed.projection",
    { size, c.num_channels, patch[1], patch[2] }, normal)
  for _, layer in ipairs(layers_of(c)) do
    local name, inner = layer.name, math.floor(layer.size * c.mlp_ratio)
    blocks.add_layer_norm(add, name .. "layer_norm1", layer.n_in)
    linear(name .. "attn.qkv", layer.n_in, 3 * layer.size)
    linear(name .. "attn.proj", layer.size, layer.size)
    blocks.add_layer_norm(add, name .. "layer_norm2", layer.size)
    linear(name .. "mlp.proj_in", layer.size, inner)
    linear(name .. "mlp.proj_out", inner, layer.size)
    if layer.n_in ~= layer.size then linear(name .. "proj", layer.n_in, layer.size) end
  end
end

-- Returns the maximum of each square of x [B, H, W, size].
local function pooled(x, stride)
  return torch.max_pool2d(x:permute { 0, 3, 1, 2 }, { stride, stride }):permute { 0, 2, 3, 1 }
end

-- [B, H, W, size] -> [B * windows, s, s, size], and the rows and columns with padding
local function to_windows(x, s)
  local below, right = -x:size(1) % s, -x:size(2) % s
  if below + right > 0 then x = torch.constant_pad_nd(x, { 0, 0, 0, right, 0, below }) end
  local batch, height, width, size = unpack(x.shape)
  return x:view { batch, height / s, s, width / s, s, size }:permute { 0, 1, 3, 2, 4, 5 }
    :reshape { -1, s, s, size }, height / s, width / s
end

-- The inverse: joins `rows` x `columns` windows, without the padding.
local function from_windows(x, rows, columns, height, width)
  local s, size = x:size(1), x:size(3)
  return x:view { -1, rows, columns, s, s, size }:permute { 0, 1, 3, 2, 4, 5 }
    :reshape { -1, rows * s, columns * s, size }:narrow(1, 0, height):narrow(2, 0, width)
end

-- Attention within each x [B, H, W, size].
local function attend(params, layer, x, o)
  local function heads(t) return blocks.split_heads(t:flatten(1, 2), layer.n_heads) end
  local name = layer.name .. "attn."
  local q, k, v = unpack(blocks.linear(params, name .. "qkv", x, o):chunk(3, -1))
  if layer.stride then q = pooled(q, layer.stride) end
  local y = blocks.attention(heads(q), heads(k), heads(v), {}, o)
  return blocks.linear(params, name .. "proj", y, o):view { -1, q:size(1), q:size(2), layer.size }
end

-- Adds the positions to places x [B, H, W, size]: those of a small grid, enlarged, and those within
-- a window.
local function with_positions(c, params, x)
  local height, width, s = x:size(1), x:size(2), c.window_size_per_stage[1]
  if height % s ~= 0 or width % s ~= 0 then
    fail("%s: an image has %d x %d places, expected multiples of the first of "
      .. "window_size_per_stage, %d: give an image whose sides are multiples of %d x %d pixels",
      c.model_type, height, width, s, s * c.patch_stride[1], s * c.patch_stride[2])
  end
  local places = torch.upsample_bicubic2d(params.pos_embed, { height, width }, false)
    + params.pos_embed_window:tile { 1, 1, height / s, width / s }
  return x + places:permute { 0, 2, 3, 1 }
end

--- Returns function(params, pixels, o) -> list of the places of each stage, [B, H, W, size].
function hiera.new_stages(c)
  local layers, activation = layers_of(c), blocks.activation(c.model_type, c.hidden_act)
  local mlp = blocks.new_mlp(activation, { "mlp.proj_in", "mlp.proj_out" })

  local function apply_layer(params, layer, x, o)
    local name = layer.name
    local function norm(part, y)
      return blocks.layer_norm(params, name .. part, y, c.layer_norm_eps)
    end
    local normed = norm("layer_norm1", x)
    if layer.n_in ~= layer.size then
      x = blocks.linear(params, name .. "proj", normed, o)
      if layer.stride then x = pooled(x, layer.stride) end
    end
    local y
    if layer.window then
      local windows, rows, columns = to_windows(normed, layer.window)
      windows = attend(params, layer, windows, o)
      if rows * windows:size(1) < x:size(1) or columns * windows:size(2) < x:size(2) then
        fail("%s: %d x %d places are too few for windows of %d, of which each %d are one: give "
          .. "an image of another size", c.model_type, normed:size(1), normed:size(2),
          layer.window, layer.stride)
      end
      y = from_windows(windows, rows, columns, x:size(1), x:size(2))
    else
      y = attend(params, layer, normed, o)
    end
    x = x + y
    return x + mlp(params, name, norm("layer_norm2", x), o)
  end

  return function(params, pixels, o)
    if pixels:dim() ~= 4 or pixels:size(1) ~= c.num_channels then
      fail("%s: pixel_values are [%s], expected [batch, %d, height, width]", c.model_type,
        table.concat(pixels.shape, ", "), c.num_channels)
    end
    local list = {}
    local x = blocks.patches(params, "patch_embed.projection", pixels,
      { stride = c.patch_stride, padding = c.patch_padding }):permute { 0, 2, 3, 1 }
    x = with_positions(c, params, x)
    for _, layer in ipairs(layers) do
      x = nn.block(apply_layer, params, layer, x, o)
      if layer.ends_stage then list[#list + 1] = x end
    end
    return list
  end
end

function hiera.new_functions(c)
  local run = hiera.new_stages(c)
  return {
    output = function(params, inputs, o)
      local list = run(params, inputs.pixel_values, o)
      return list[#list]
    end,
    hidden_states = function(params, inputs, o)
      local list = run(params, inputs.pixel_values, o)
      return list[#list], list
    end,
  }
end

return hiera
