--- The transformer within a UNet block (diffusers' `Transformer2DModel`): pixels attend to each
--- other and to the text. facts: heads, groups, n_layers, n_text (size of a text's tokens),
--- is_linear (linear projections instead of 1 x 1 convolutions), sees_text_only.
local blocks = require "redco.models.layers.blocks"
local layers = require "redco.diffusion.layers"
local nn = require "redco.nn"
local torch = require "redco.torch"

local transformer = {}

local function layer_name(name, i) return ("%s.transformer_blocks.%d"):format(name, i) end

local function add_projection(add, name, size, is_linear)
  if is_linear then return layers.add_linear(add, name, size, size) end
  layers.add_conv(add, name, size, size, 1)
end

function transformer.add_parameters(add, name, size, facts)
  layers.add_norm(add, name .. ".norm", size)
  add_projection(add, name .. ".proj_in", size, facts.is_linear)
  for i = 0, facts.n_layers - 1 do
    local layer = layer_name(name, i)
    layers.add_norm(add, layer .. ".norm1", size)
    layers.add_attention(add, layer .. ".attn1", size,
      facts.sees_text_only and facts.n_text or size, false)
    layers.add_norm(add, layer .. ".norm2", size)
    layers.add_attention(add, layer .. ".attn2", size, facts.n_text, false)
    layers.add_norm(add, layer .. ".norm3", size)
    layers.add_linear(add, layer .. ".ff.net.0.proj", size, 8 * size)
    layers.add_linear(add, layer .. ".ff.net.2", 4 * size, size)
  end
  add_projection(add, name .. ".proj_out", size, facts.is_linear)
end

-- The gated feed-forward layer, GEGLU.
local function feed_forward(params, name, x, o)
  local hidden, gate = unpack(blocks.linear(params, name .. ".net.0.proj", x, o):chunk(2, -1))
  return blocks.linear(params, name .. ".net.2", hidden * torch.gelu(gate), o)
end

local function apply_layer(params, name, x, text, mask, facts, o)
  local function norm(part) return blocks.layer_norm(params, name .. part, x, 1e-5) end
  local function attend(part, from, memory, own_mask)
    return layers.attention(params, name .. part, from, memory, facts.heads, own_mask, o)
  end
  x = x + attend(".attn1", norm ".norm1", facts.sees_text_only and text or nil)
  x = x + attend(".attn2", norm ".norm2", text, mask)
  return x + feed_forward(params, name .. ".ff", norm ".norm3", o)
end

--- x: [B, C, H, W]; text: [B, T, D]; mask: nil or [B, 1, 1, T], added to the scores of the text.
function transformer.apply(params, name, x, text, mask, facts, o)
  local proj_in = facts.is_linear and blocks.linear or layers.pointwise_conv
  local y = layers.group_norm(params, name .. ".norm", x, facts.groups, 1e-6)
  y = proj_in(params, name .. ".proj_in", layers.pixels_as_tokens(y), o)
  for i = 0, facts.n_layers - 1 do
    y = nn.block(apply_layer, params, layer_name(name, i), y, text, mask, facts, o)
  end
  if facts.is_linear then
    y = layers.tokens_as_pixels(blocks.linear(params, name .. ".proj_out", y, o), x)
  else
    -- A matrix product would accept a partial sum, and then also send the gradient of its weight.
    y = layers.conv(params, name .. ".proj_out", layers.tokens_as_pixels(y, x))
  end
  return x + y
end

return transformer
