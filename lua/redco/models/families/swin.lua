--- Swin Transformer (Liu et al., 2021), as Hugging Face's `SwinForImageClassification` and
--- `SwinModel`.
local blocks = require "redco.models.layers.blocks"
local fail = require "redco.fail"
local new_family = require "redco.models.kinds.images_family"
local stages = require "redco.models.images.swin_stages"
local torch = require "redco.torch"

local function add_parameters(c, add)
  local normal, first = blocks.normal(c.initializer_range), c.embed_dim
  blocks.add_convolution(add, "embeddings.patch_embeddings.projection",
    { first, c.num_channels, c.patch_size, c.patch_size }, normal)
  blocks.add_layer_norm(add, "embeddings.norm", first)
  if c.use_absolute_embeddings then
    add("embeddings.position_embeddings",
      { 1, math.floor(c.image_size / c.patch_size) ^ 2 + 1, first }, blocks.zeros)
  end
  stages.add_parameters(c, "encoder.", add, normal)
  blocks.add_layer_norm(add, "layernorm", stages.size(c))
end

local function embed(c, params, pixels, o)
  if pixels:dim() ~= 4 or pixels:size(1) ~= c.num_channels then
    fail("swin: pixel_values are [%s], expected [batch, %d, height, width]",
      table.concat(pixels.shape, ", "), c.num_channels)
  end
  local rows, columns = -pixels:size(2) % c.patch_size, -pixels:size(3) % c.patch_size
  if rows + columns > 0 then pixels = torch.constant_pad_nd(pixels, { 0, columns, 0, rows }) end
  local x = blocks.patches(params, "embeddings.patch_embeddings.projection", pixels,
    { stride = c.patch_size }):permute { 0, 2, 3, 1 }
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
  local run = stages.new(c, "encoder.")
  return function(params, inputs, o, kept)
    local function keep(x) if kept then kept[#kept + 1] = x:flatten(1, 2) end end
    local x = embed(c, params, inputs.pixel_values, o)
    keep(x)
    x = run(params, x, o, keep)
    return blocks.layer_norm(params, "layernorm", x:flatten(1, 2), c.layer_norm_eps)
  end
end

local function new_features() return function(_, x) return x:mean { 1 } end end

return new_family {
  model_type = "swin",
  models = "Swin Transformer",
  class = "Swin",
  prefix = "swin",
  check = stages.check,
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
    return stages.size(c), blocks.normal(c.initializer_range), new_features()
  end,
}
