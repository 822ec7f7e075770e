--- DINOv3 (Siméoni et al., 2025), as Hugging Face's `DINOv3ViTModel`: ViT with rotary positions of
--- rows and columns, for images of any size.
local blocks = require "redco.models.layers.blocks"
local fail = require "redco.fail"
local new_family = require "redco.models.kinds.images_family"
local nn = require "redco.nn"
local rotary = require "redco.models.layers.rotary"
local torch = require "redco.torch"

local function check(c)
  blocks.check_multiple(c, "hidden_size", "num_attention_heads")
  if c.hidden_size / c.num_attention_heads % 4 ~= 0 then
    fail("dinov3_vit: heads of %d elements do not turn by rows and columns: expected a multiple "
      .. "of 4", c.hidden_size / c.num_attention_heads)
  end
end

local function add_parameters(c, add)
  local size = c.hidden_size
  local function normal(t, generator)
    return nn.init.trunc_normal_(t, { std = c.initializer_range, generator = generator })
  end
  local function linear(name, n_in, n_out, bias)
    blocks.add_linear(add, name, n_in, n_out, normal, bias)
  end
  add("embeddings.cls_token", { 1, 1, size }, normal)
  add("embeddings.mask_token", { 1, 1, size }, blocks.zeros)
  if c.num_register_tokens > 0 then
    add("embeddings.register_tokens", { 1, c.num_register_tokens, size }, normal)
  end
  blocks.add_convolution(add, "embeddings.patch_embeddings",
    { size, c.num_channels, c.patch_size, c.patch_size }, normal)
  for i = 0, c.num_hidden_layers - 1 do
    local layer = ("layer.%d."):format(i)
    linear(layer .. "attention.q_proj", size, size, c.query_bias)
    linear(layer .. "attention.k_proj", size, size, c.key_bias)
    linear(layer .. "attention.v_proj", size, size, c.value_bias)
    linear(layer .. "attention.o_proj", size, size, c.proj_bias)
    if c.use_gated_mlp then
      linear(layer .. "mlp.gate_proj", size, c.intermediate_size, c.mlp_bias)
    end
    linear(layer .. "mlp.up_proj", size, c.intermediate_size, c.mlp_bias)
    linear(layer .. "mlp.down_proj", c.intermediate_size, size, c.mlp_bias)
    for _, k in ipairs { 1, 2 } do
      blocks.add_layer_norm(add, layer .. "norm" .. k, size)
      add(("%slayer_scale%d.lambda1"):format(layer, k), { size },
        blocks.constant(c.layerscale_value))
    end
  end
  blocks.add_layer_norm(add, "norm", size)
end

-- The centers of patches [1, rows * columns, 2], from -1 to 1.
local function centers(n_rows, n_columns, device)
  local function along(n) return (torch.arange(n, { device = device }) + 0.5) * (2 / n) - 1 end
  local rows = along(n_rows):view { -1, 1 }:expand { n_rows, n_columns }
  local columns = along(n_columns):view { 1, -1 }:expand { n_rows, n_columns }
  return torch.stack({ rows:reshape { -1 }, columns:reshape { -1 } }, -1):unsqueeze(0)
end

-- In training, moves and scales the centers of each example of x [B, T, size] at random.
local function augmented(c, places, x, o)
  local function drawn(n, bound)
    local like = x:detach():narrow(1, 0, 1):narrow(2, 0, n):float()
    return torch.empty_like(like):uniform_(-bound, bound, { generator = o.rng })
  end
  if c.pos_embed_shift then places = places + drawn(2, c.pos_embed_shift) end
  if c.pos_embed_jitter then places = places * drawn(2, math.log(c.pos_embed_jitter)):exp() end
  if c.pos_embed_rescale then places = places * drawn(1, math.log(c.pos_embed_rescale)):exp() end
  return places
end

-- Returns cos and sin [B or 1, 1, first + patches, head size / 2], which rotate only patches.
local function angles_of(c, n_first, n_rows, n_columns, x, o)
  local size = c.hidden_size / c.num_attention_heads
  local places = centers(n_rows, n_columns, x.device)
  if o.train then places = augmented(c, places, x, o) end
  local exponents = torch.arange(0, 1, 4 / size, { dtype = "float32", device = x.device })
  local angles = places:unsqueeze(-1) * (2 * math.pi / torch.pow(c.rope_theta, exponents))
  angles = torch.constant_pad_nd(angles:flatten(2), { 0, 0, n_first, 0 }, 0):unsqueeze(1)
  return angles:cos():to(x.dtype), angles:sin():to(x.dtype)
end

local function new_encoder(c)
  local activation = blocks.activation("dinov3_vit", c.hidden_act)
  local n_heads, n_first = c.num_attention_heads, 1 + c.num_register_tokens

  return function(params, inputs, o, kept)
    local pixels = inputs.pixel_values
    if pixels:dim() ~= 4 or pixels:size(1) ~= c.num_channels then
      fail("dinov3_vit: pixel_values are [%s], expected [batch, %d, height, width]",
        table.concat(pixels.shape, ", "), c.num_channels)
    end
    local batch = pixels:size(0)
    local patches = blocks.patches(params, "embeddings.patch_embeddings", pixels,
      { stride = c.patch_size })
    local function repeated(name) return params[name]:expand { batch, -1, -1 } end
    local parts = { repeated "embeddings.cls_token" }
    if c.num_register_tokens > 0 then parts[2] = repeated "embeddings.register_tokens" end
    parts[#parts + 1] = patches:flatten(2):transpose(1, 2)
    local x = torch.cat(parts, 1)
    local cos, sin = angles_of(c, n_first, patches:size(2), patches:size(3), x, o)
    local function keep() if kept then kept[#kept + 1] = x end end
    keep()

    local function attend(layer, y)
      local function heads(part)
        return blocks.split_heads(blocks.linear(params, layer .. part, y, o), n_heads)
      end
      local seen = blocks.attention(rotary.turn_halves(heads "q_proj", cos, sin),
        rotary.turn_halves(heads "k_proj", cos, sin), heads "v_proj",
        { dropout = c.attention_dropout }, o)
      return blocks.linear(params, layer .. "o_proj", seen, o)
    end
    local function mlp(layer, y)
      local up = blocks.linear(params, layer .. "up_proj", y, o)
      local inner = c.use_gated_mlp
        and blocks.gated(activation, blocks.linear(params, layer .. "gate_proj", y, o), up)
        or activation(up)
      return blocks.linear(params, layer .. "down_proj", inner, o)
    end
    local function apply_layer(layer, y)
      for k, part in ipairs { { "attention.", attend }, { "mlp.", mlp } } do
        local normed = blocks.layer_norm(params, layer .. "norm" .. k, y, c.layer_norm_eps)
        local added = part[2](layer .. part[1], normed)
          * params[("%slayer_scale%d.lambda1"):format(layer, k)]
        y = y + blocks.drop_path(added, c.drop_path_rate, o)
      end
      return y
    end
    for i = 0, c.num_hidden_layers - 1 do
      x = nn.block(apply_layer, ("layer.%d."):format(i), x)
      keep()
    end
    return blocks.layer_norm(params, "norm", x, c.layer_norm_eps)
  end
end

return new_family {
  model_type = "dinov3_vit",
  models = "DINOv3",
  class = "DINOv3ViT",
  prefix = "dinov3_vit",
  check = check,
  defaults = {
    patch_size = 16,
    hidden_size = 384,
    intermediate_size = 1536,
    num_hidden_layers = 12,
    num_attention_heads = 6,
    hidden_act = "gelu",
    attention_dropout = 0.0,
    initializer_range = 0.02,
    layer_norm_eps = 1e-5,
    rope_theta = 100.0,
    image_size = 224,
    num_channels = 3,
    query_bias = true,
    key_bias = false,
    value_bias = true,
    proj_bias = true,
    mlp_bias = true,
    layerscale_value = 1.0,
    drop_path_rate = 0.0,
    use_gated_mlp = false,
    num_register_tokens = 0,
    pos_embed_rescale = 2.0,
  },
  nullable = { "pos_embed_rescale" },
  optional = { "pos_embed_shift", "pos_embed_jitter", "apply_layernorm", "reshape_hidden_states",
    "out_features", "out_indices", "stage_names", "rope_parameters" },
  ignored = { "register_tokens$" },  -- an empty tensor
  -- Only training with masked images reads this parameter.
  buffers = { ["embeddings.mask_token"] = true },
  complete_model = rotary.complete,
  add_parameters = add_parameters,
  new_encoder = new_encoder,
  new_features = function() return function(_, x) return x:select(1, 0) end end,
}
