--- Llama 4's model of images (Meta, 2025), as Hugging Face's `Llama4VisionModel`: the patches of a
--- tile, with learned and rotary positions, and a class token behind them. Its output are squares
--- of patches, joined and projected.
local blocks = require "redco.models.layers.blocks"
local fail = require "redco.fail"
local layers = require "redco.models.layers.clip_layers"
local nn = require "redco.nn"
local rotary = require "redco.models.layers.rotary"
local squares = require "redco.models.images.patch_squares"
local torch = require "redco.torch"

local vision = {
  model_type = "llama4_vision_model",
  prefix = "",
  defaults = {
    hidden_size = 768,
    intermediate_size = 5632,
    num_hidden_layers = 34,
    num_attention_heads = 16,
    num_channels = 3,
    image_size = 448,
    patch_size = 14,
    attention_dropout = 0.0,
    pixel_shuffle_ratio = 0.5,
    projector_input_dim = 4096,
    projector_output_dim = 4096,
    projector_dropout = 0.0,
    vision_output_dim = 7680,
    rope_theta = 10000.0,
    initializer_range = 0.02,
  },
  -- transformers has these keys, but reads only the first.
  optional = { "rope_parameters", "hidden_act", "multi_modal_projector_bias", "norm_eps",
    "vision_feature_layer", "vision_feature_select_strategy" },
  complete = rotary.complete,
}

local eps = 1e-5  -- of all norms, whatever norm_eps says

-- Returns the number of patches along a side of a tile, and along a side of a square.
local function sides_of(c)
  local n_rows = math.floor(c.image_size / c.patch_size)
  return n_rows, squares.side(c, "pixel_shuffle_ratio", n_rows)
end

local function check_equal(c, key, expected, what)
  if c[key] ~= expected then
    fail("llama4_vision_model: %s is %d, expected %s, %d", key, c[key], what, expected)
  end
end

function vision.check(c)
  blocks.check_multiple(c, "hidden_size", "num_attention_heads")
  local size = c.hidden_size / c.num_attention_heads
  if size % 4 ~= 0 then
    fail("llama4_vision_model: heads have %d elements, expected a multiple of 4", size)
  end
  if c.rope_scaling then
    fail("llama4_vision_model: rope_type '%s' is not supported, only 'default'",
      c.rope_scaling.rope_type)
  end
  local _, side = sides_of(c)
  check_equal(c, "intermediate_size", c.hidden_size * side ^ 2, "the size of a square of patches")
  for _, key in ipairs { "projector_input_dim", "vision_output_dim" } do
    check_equal(c, key, c.projector_output_dim, "projector_output_dim")
  end
end

--- The number of features of a tile.
function vision.n_features(c)
  local n_rows, side = sides_of(c)
  return (n_rows / side) ^ 2
end

function vision.add_parameters(c, add)
  local size, normal = c.hidden_size, blocks.normal(c.initializer_range)
  local own = blocks.normal(size ^ -0.5)
  local function linear(name, n_in, n_out, bias)
    blocks.add_linear(add, name, n_in, n_out, normal, bias)
  end
  add("class_embedding", { size }, own)
  add("positional_embedding_vlm", { math.floor(c.image_size / c.patch_size) ^ 2 + 1, size }, own)
  linear("patch_embedding.linear", c.num_channels * c.patch_size ^ 2, size, false)
  blocks.add_layer_norm(add, "layernorm_pre", size)
  for i = 0, c.num_hidden_layers - 1 do
    local layer = ("model.layers.%d."):format(i)
    for _, part in ipairs { "q", "k", "v", "o" } do
      linear(layer .. "self_attn." .. part .. "_proj", size, size)
    end
    layers.add_mlp(add, layer .. "mlp", c, { fc1 = normal, fc2 = normal })
    blocks.add_layer_norm(add, layer .. "input_layernorm", size)
    blocks.add_layer_norm(add, layer .. "post_attention_layernorm", size)
  end
  blocks.add_layer_norm(add, "layernorm_post", size)
  linear("vision_adapter.mlp.fc1", c.intermediate_size, c.projector_input_dim, false)
  linear("vision_adapter.mlp.fc2", c.projector_output_dim, c.projector_output_dim, false)
end

-- Returns the patches [n, patches, numbers] of images. What is left at the edges is not seen.
local function patches_of(c, pixels)
  local side = c.patch_size
  local n_rows = math.floor(c.image_size / side)
  local seen = pixels:narrow(2, 0, n_rows * side):narrow(3, 0, n_rows * side)
  return squares.of(seen:permute { 0, 2, 3, 1 }:flatten(1, 2), n_rows * side, n_rows * side, side)
    :permute { 0, 1, 4, 2, 3 }:flatten(2)
end

-- Returns cos and sin [1, 1, patches + 1, half a head]. The first half of the pairs turns with the
-- column, the others with the row, both counted from 1; the class token does not turn.
local function angles_of(c, like)
  local n_rows = math.floor(c.image_size / c.patch_size)
  local numbers = torch.arange(n_rows ^ 2, { device = like.device })
  local columns = numbers:remainder(n_rows) + 1
  local rows = numbers:div(n_rows, { rounding_mode = "floor" }) + 1
  local angles = rotary.angles_of_two(columns, rows, c.hidden_size / c.num_attention_heads,
    c.rope_theta)
  angles = torch.constant_pad_nd(angles, { 0, 0, 0, 1 }):unsqueeze(0):unsqueeze(0)
  return angles:cos():to(blocks.wide_dtype(like)), angles:sin():to(blocks.wide_dtype(like))
end

-- Returns the embeddings [n, patches + 1, size].
local function embed(c, params, inputs, o)
  local class = params["class_embedding"]
  local patches = patches_of(c, layers.pixels_of(c, inputs):to(class.dtype))
  local x = blocks.linear(params, "patch_embedding.linear", patches, o)
  x = torch.cat({ x, class:view { 1, 1, c.hidden_size }:expand { x:size(0), 1, c.hidden_size } }, 1)
  return blocks.layer_norm(params, "layernorm_pre", x + params["positional_embedding_vlm"], eps)
end

-- Returns the features of the patches, without the class token.
local function adapt(c, params, x, o)
  local n_rows, side = sides_of(c)
  x = squares.of(x:narrow(1, 0, n_rows ^ 2), n_rows, n_rows, side):flatten(2)
  x = blocks.dropout(torch.gelu(blocks.linear(params, "vision_adapter.mlp.fc1", x, o)),
    c.projector_dropout, o)
  return torch.gelu(blocks.linear(params, "vision_adapter.mlp.fc2", x, o))
end

function vision.new_tower(c)
  local n_heads, mlp = c.num_attention_heads, blocks.new_mlp(torch.gelu, { "fc1", "fc2" })

  local function apply_layer(params, layer, x, cos, sin, o)
    local function norm(name) return blocks.layer_norm(params, layer .. name, x, eps) end
    local function heads(y, part)
      return blocks.split_heads(
        blocks.linear(params, layer .. "self_attn." .. part .. "_proj", y, o), n_heads)
    end
    local function turned(t)
      return rotary.turn_neighbours(t:to(cos.dtype), cos, sin):to(t.dtype)
    end
    local y = norm "input_layernorm"
    y = blocks.attention(turned(heads(y, "q")), turned(heads(y, "k")), heads(y, "v"),
      { dropout = c.attention_dropout }, o)
    x = x + blocks.linear(params, layer .. "self_attn.o_proj", y, o)
    return x + mlp(params, layer .. "mlp.", norm "post_attention_layernorm", o)
  end

  return function(params, inputs, o, kept)
    local function keep(x) if kept then kept[#kept + 1] = x end end
    local x = embed(c, params, inputs, o)
    local cos, sin = angles_of(c, x)
    keep(x)
    for i = 0, c.num_hidden_layers - 1 do
      x = nn.block(apply_layer, params, ("model.layers.%d."):format(i), x, cos, sin, o)
      keep(x)
    end
    return adapt(c, params, blocks.layer_norm(params, "layernorm_post", x, eps), o)
  end
end

return vision
