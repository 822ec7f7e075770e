--- Pixtral's model of images (Mistral AI, 2024), as Hugging Face's `PixtralVisionModel`: layers as
--- LLaMA's over the patches of images of different sizes, with rotary positions of rows and
--- columns. Images are padded at the right and at the bottom; image_sizes [n, 2] are their heights
--- and widths.
local blocks = require "redco.models.layers.blocks"
local fail = require "redco.fail"
local masks = require "redco.models.layers.masks"
local nn = require "redco.nn"
local rotary = require "redco.models.layers.rotary"
local torch = require "redco.torch"

local vision = {
  model_type = "pixtral",
  prefix = "",
  defaults = {
    hidden_size = 1024,
    intermediate_size = 4096,
    num_hidden_layers = 24,
    num_attention_heads = 16,
    num_channels = 3,
    image_size = 1024,
    patch_size = 16,
    hidden_act = "gelu",
    attention_dropout = 0.0,
    rope_theta = 10000.0,
    initializer_range = 0.02,
  },
  optional = { "head_dim", "rope_parameters" },
}

--- Whether the parameter of this name is the tower's.
function vision.has_name(name)
  return name:find "^patch_conv%." or name:find "^ln_pre%." or name:find "^transformer%."
end

local eps = 1e-5  -- of all norms

function vision.complete(c)
  local rope = c.rope_parameters
  if type(rope) == "table" then
    local kind = rope.rope_type or "default"
    if kind ~= "default" and kind ~= "axial" then
      fail("pixtral: rope_type '%s' is not supported, only 'axial' and 'default'", kind)
    end
    c.rope_theta = rope.rope_theta or c.rope_theta
  end
  c.rope_parameters = nil
  c.head_dim = c.hidden_size / c.num_attention_heads  -- whatever a file says, as in transformers
end

function vision.check(c)
  blocks.check_multiple(c, "hidden_size", "num_attention_heads")
  local size = c.hidden_size / c.num_attention_heads
  if size % 4 ~= 0 then fail("pixtral: heads have %d elements, expected a multiple of 4", size) end
end

function vision.add_parameters(c, add)
  local size, normal = c.hidden_size, blocks.normal(c.initializer_range)
  local function linear(name, n_in, n_out)
    blocks.add_linear(add, name, n_in, n_out, normal, false)
  end
  add("patch_conv.weight", { size, c.num_channels, c.patch_size, c.patch_size }, normal)
  add("ln_pre.weight", { size }, blocks.ones)
  for i = 0, c.num_hidden_layers - 1 do
    local layer = ("transformer.layers.%d."):format(i)
    add(layer .. "attention_norm.weight", { size }, blocks.ones)
    for _, part in ipairs { "q", "k", "v", "o" } do
      linear(layer .. "attention." .. part .. "_proj", size, size)
    end
    add(layer .. "ffn_norm.weight", { size }, blocks.ones)
    linear(layer .. "feed_forward.gate_proj", size, c.intermediate_size)
    linear(layer .. "feed_forward.up_proj", size, c.intermediate_size)
    linear(layer .. "feed_forward.down_proj", c.intermediate_size, size)
  end
end

-- Returns cos and sin for the patches, each [1, 1, rows * columns, half a head]. The frequencies
-- alternate: one rotates with the row, the next one with the column.
local function angles_of(c, n_rows, n_columns, like)
  local size, options = c.hidden_size / c.num_attention_heads, { device = like.device }
  local steps = torch.pow(c.rope_theta, torch.arange(0, size, 2, options):float() / size)
    :reciprocal():view { size / 4, 2 }
  local rows = torch.arange(n_rows, options):float():view { n_rows, 1, 1 } * steps:select(1, 0)
  local columns = torch.arange(n_columns, options):float():view { 1, n_columns, 1 }
    * steps:select(1, 1)
  local shape = { n_rows, n_columns, size / 4 }
  local angles = torch.cat({ rows:expand(shape), columns:expand(shape) }, -1):flatten(0, 1)
  angles = angles:unsqueeze(0):unsqueeze(0)
  return angles:cos():to(like.dtype), angles:sin():to(like.dtype)
end

-- Returns the mask of the patches that are in an image, or nil if there are no sizes.
local function mask_of(c, sizes, n_rows, n_columns, like)
  if not sizes then return end
  local counts, options = sizes:div(c.patch_size, { rounding_mode = "floor" }),
    { device = sizes.device }
  local function within(n, k) return torch.arange(n, options):lt(counts:narrow(1, k, 1)) end
  local seen = within(n_rows, 0):unsqueeze(-1):logical_and(within(n_columns, 1):unsqueeze(1))
  return masks.padding(seen:flatten(1):to "int64", like.dtype)
end

function vision.new_tower(c)
  local activation, n_heads = blocks.activation(c.model_type, c.hidden_act), c.num_attention_heads

  return function(params, inputs, o, kept)
    local function norm(name, x) return blocks.rms_norm(params, name, x, eps) end
    local function keep(x) if kept then kept[#kept + 1] = x end end
    local pixels, weight = inputs.pixel_values, params["patch_conv.weight"]
    if pixels:dim() ~= 4 or pixels:size(1) ~= c.num_channels then
      fail("pixtral: pixel_values are [%s], expected [images, %d, height, width]",
        table.concat(pixels.shape, ", "), c.num_channels)
    end
    local patches = torch.conv2d(pixels:to(weight.dtype), weight, nil,
      { c.patch_size, c.patch_size })
    local n_rows, n_columns = patches:size(2), patches:size(3)
    local x = norm("ln_pre", patches:flatten(2):transpose(1, 2))
    local cos, sin = angles_of(c, n_rows, n_columns, x)
    local mask = mask_of(c, inputs.image_sizes, n_rows, n_columns, x)

    local function attend(name, y)
      local function heads(part)
        return blocks.split_heads(blocks.linear(params, name .. part, y, o), n_heads)
      end
      local q = rotary.turn_halves(heads "q_proj", cos, sin)
      local k = rotary.turn_halves(heads "k_proj", cos, sin)
      return blocks.linear(params, name .. "o_proj", blocks.attention(q, k, heads "v_proj",
        { mask = mask, dropout = c.attention_dropout }, o), o)
    end

    local function feed(name, y)
      local gate = activation(blocks.linear(params, name .. "gate_proj", y, o))
      return blocks.linear(params, name .. "down_proj",
        gate * blocks.linear(params, name .. "up_proj", y, o), o)
    end

    local function apply_layer(layer, y)
      y = y + attend(layer .. "attention.", norm(layer .. "attention_norm", y))
      return y + feed(layer .. "feed_forward.", norm(layer .. "ffn_norm", y))
    end

    keep(x)
    for i = 0, c.num_hidden_layers - 1 do
      x = nn.block(apply_layer, ("transformer.layers.%d."):format(i), x)
      keep(x)
    end
    return x
  end
end

return vision
