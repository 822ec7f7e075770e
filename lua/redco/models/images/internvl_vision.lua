--- InternVL's model of images (Chen et al., 2023), as Hugging Face's `InternVLVisionModel`: ViT
--- with a scale behind each layer. Its output is behind the last norm, unless means of it are used.
local blocks = require "redco.models.layers.blocks"
local fail = require "redco.fail"
local nn = require "redco.nn"
local norms = require "redco.models.layers.norms"
local torch = require "redco.torch"

local vision = {
  model_type = "internvl_vision",
  prefix = "",
  defaults = {
    hidden_size = 1024,
    num_hidden_layers = 24,
    num_attention_heads = 16,
    attention_bias = false,
    use_qk_norm = false,
    intermediate_size = 4096,
    hidden_act = "gelu",
    hidden_dropout_prob = 0.0,
    attention_dropout = 0.0,
    projection_dropout = 0.0,
    initializer_range = 0.02,
    norm_type = "layer_norm",
    layer_norm_eps = 1e-6,
    image_size = { 448, 448 },
    patch_size = { 14, 14 },
    num_channels = 3,
    use_mask_token = false,
    use_absolute_position_embeddings = true,
    layer_scale_init_value = 0.1,
    use_mean_pooling = true,
  },
  lists = { image_size = true, patch_size = true },
}

local kinds = { layer_norm = norms.layer, rms_norm = norms.rms }

-- Returns the side of a square. The key has one number or two, which must be equal.
local function side(c, key)
  local sizes = c[key]
  return type(sizes) == "table" and sizes[1] or sizes
end

function vision.check(c)
  blocks.check_multiple(c, "hidden_size", "num_attention_heads")
  for _, key in ipairs { "image_size", "patch_size" } do
    local size = c[key]
    local is_square = type(size) == "number"
      or type(size) == "table" and #size == 2 and size[1] == size[2]
    if not is_square or side(c, key) < 1 or side(c, key) % 1 ~= 0 then
      fail("internvl_vision: %s is not supported, only two equal whole numbers", key)
    end
  end
  if not kinds[c.norm_type] then
    fail("internvl_vision: norm_type is '%s', expected 'layer_norm' or 'rms_norm'", c.norm_type)
  end
  if c.use_mask_token then fail "internvl_vision: use_mask_token is not supported" end
end

--- The number of patches of a side.
function vision.n_rows(c) return math.floor(side(c, "image_size") / side(c, "patch_size")) end

function vision.add_parameters(c, add)
  local size, normal, norm = c.hidden_size, blocks.normal(c.initializer_range), kinds[c.norm_type]
  local patch = side(c, "patch_size")
  local function linear(name, n_in, n_out, bias)
    blocks.add_linear(add, name, n_in, n_out, normal, bias)
  end
  add("embeddings.cls_token", { 1, 1, size }, blocks.zeros)
  if c.use_absolute_position_embeddings then
    add("embeddings.position_embeddings", { 1, vision.n_rows(c) ^ 2 + 1, size }, blocks.zeros)
  end
  blocks.add_convolution(add, "embeddings.patch_embeddings.projection",
    { size, c.num_channels, patch, patch }, normal)
  for i = 0, c.num_hidden_layers - 1 do
    local layer = ("encoder.layer.%d."):format(i)
    for k = 1, 2 do
      add(layer .. "lambda_" .. k, { size }, blocks.constant(c.layer_scale_init_value))
    end
    for _, part in ipairs { "q", "k", "v" } do
      linear(layer .. "attention." .. part .. "_proj", size, size,
        c.attention_bias and blocks.zeros)
    end
    linear(layer .. "attention.projection_layer", size, size)
    for _, part in ipairs(c.use_qk_norm and { "q", "k" } or {}) do
      norms.rms.add(add, layer .. "attention." .. part .. "_norm", { size })
    end
    linear(layer .. "mlp.fc1", size, c.intermediate_size)
    linear(layer .. "mlp.fc2", c.intermediate_size, size)
    norm.add(add, layer .. "layernorm_before", { size })
    norm.add(add, layer .. "layernorm_after", { size })
  end
  if not c.use_mean_pooling then blocks.add_layer_norm(add, "layernorm", size) end
end

-- Returns the embeddings [B, 1 + patches, size].
local function embed(c, params, pixels)
  local size, patch = side(c, "image_size"), side(c, "patch_size")
  local expected = table.concat({ c.num_channels, size, size }, ", ")
  if pixels:dim() ~= 4 or table.concat(pixels.shape, ", ", 2) ~= expected then
    fail("internvl_vision: pixel_values are [%s], expected [tiles, %s]",
      table.concat(pixels.shape, ", "), expected)
  end
  local patches = blocks.patches(params, "embeddings.patch_embeddings.projection", pixels,
    { stride = patch })
  local class = params["embeddings.cls_token"]:expand { pixels:size(0), 1, c.hidden_size }
  local x = torch.cat({ class, patches:flatten(2):transpose(1, 2) }, 1)
  local positions = params["embeddings.position_embeddings"]
  return positions and x + positions or x
end

function vision.new_tower(c)
  local activation, norm_kind = blocks.activation(c.model_type, c.hidden_act), kinds[c.norm_type]
  local n_heads = c.num_attention_heads

  return function(params, inputs, o, kept)
    local function drop(x, p) return blocks.dropout(x, p, o) end
    local function keep(x) if kept then kept[#kept + 1] = x end end

    local function attend(name, x)
      local parts = {}
      for k, part in ipairs { "q", "k", "v" } do
        local y = blocks.linear(params, name .. "." .. part .. "_proj", x, o)
        if c.use_qk_norm and k < 3 then
          y = blocks.rms_norm(params, name .. "." .. part .. "_norm", y, 1e-6)
        end
        parts[k] = blocks.split_heads(y, n_heads)
      end
      local y = blocks.attention(parts[1], parts[2], parts[3], { dropout = c.attention_dropout }, o)
      return drop(blocks.linear(params, name .. ".projection_layer", y, o), c.projection_dropout)
    end

    local function apply_layer(layer, x)
      local function norm(name)
        return norm_kind.apply(params, layer .. name, x, c.layer_norm_eps)
      end
      x = x + attend(layer .. "attention", norm "layernorm_before") * params[layer .. "lambda_1"]
      local inner = activation(blocks.linear(params, layer .. "mlp.fc1", norm "layernorm_after", o))
      local y = drop(blocks.linear(params, layer .. "mlp.fc2", inner, o), c.hidden_dropout_prob)
      return x + y * params[layer .. "lambda_2"]
    end

    local x = drop(embed(c, params, inputs.pixel_values), c.hidden_dropout_prob)
    keep(x)
    for i = 0, c.num_hidden_layers - 1 do
      x = nn.block(apply_layer, ("encoder.layer.%d."):format(i), x)
      keep(x)
    end
    return c.use_mean_pooling and x or blocks.layer_norm(params, "layernorm", x, c.layer_norm_eps)
  end
end

return vision
