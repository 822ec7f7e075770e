--- The common parts of DiT and Stable Diffusion 3: patches of latents as tokens with fixed
--- positions, norms that the conditions scale and shift (adaLN, Peebles and Xie, 2023), and the
--- layers before and after the blocks.
--- Shapes: B batch, T tokens, C size of a token.
local blocks = require "redco.models.layers.blocks"
local fail = require "redco.fail"
local layers = require "redco.diffusion.layers"
local time_of = require "redco.diffusion.unet_time"
local torch = require "redco.torch"

local patches = {}

local eps = 1e-6

--- Returns C.
function patches.size(c) return c.num_attention_heads * c.attention_head_dim end

-- Sines and cosines [T, size] of places [T].
local function waves(places, size)
  local float64 = { dtype = "float64", device = places.device }
  local rates = torch.pow(10000, torch.arange(0, size / 2, float64) / -(size / 2))
  local angles = places:double():unsqueeze(1) * rates:unsqueeze(0)
  return torch.cat({ angles:sin(), angles:cos() }, 1)
end

--- Returns the positions [1, height * width, size] of patches, row by row: of the column, then of
--- the row. `base` is the number of patches in a row for which a model is made.
function patches.positions(height, width, size, base, device)
  local float32 = { dtype = "float32", device = device }
  local rows = torch.arange(0, height, float32) / (height / base)
  local columns = torch.arange(0, width, float32) / (width / base)
  return torch.cat({ waves(columns:tile { height }, size / 2),
    waves(rows:repeat_interleave(width), size / 2) }, 1):float():unsqueeze(0)
end

--- Declares the convolution of patches, and if `max` is given, positions for `max` x `max` patches.
function patches.add_parameters(c, add, size, max)
  layers.add_conv(add, "pos_embed.proj", c.in_channels, size, c.patch_size)
  if max then
    add("pos_embed.pos_embed", { 1, max * max, size }, function(t)
      local base = math.floor(c.sample_size / c.patch_size)
      return torch.no_grad(function()
        return t:copy_(patches.positions(max, max, size, base, t.device))
      end)
    end)
  end
end

-- The window of the stored positions that is in their middle.
local function middle(stored, max, height, width)
  if height > max or width > max then
    fail("transformer: %d x %d patches are more than pos_embed_max_size, %d", height, width, max)
  end
  local size = stored:size(2)
  return stored:detach():view { 1, max, max, size }
    :narrow(1, math.floor((max - height) / 2), height)
    :narrow(2, math.floor((max - width) / 2), width):reshape { 1, height * width, size }
end

-- Returns latents [B, channels, H, W] as tokens [B, T, C], and the patches in a column and a row.
local function embed(c, params, latents, max)
  local size = patches.size(c)
  local x = layers.conv(params, "pos_embed.proj", latents, c.patch_size, 0)
  local height, width = x:size(2), x:size(3)
  local places = max and middle(params["pos_embed.pos_embed"], max, height, width)
    or patches.positions(height, width, size, math.floor(c.sample_size / c.patch_size), x.device)
  return layers.pixels_as_tokens(x) + places:to(x.dtype), height, width
end

-- The inverse of a cut into patches: [B, T, patch * patch * channels] -> [B, channels, H, W].
local function join(x, height, width, patch, channels)
  return x:view { x:size(0), height, width, patch, patch, channels }
    :permute { 0, 5, 1, 3, 2, 4 }:reshape { x:size(0), channels, height * patch, width * patch }
end

--- Declares the layer of a norm that gives `n` scales, shifts and gates.
function patches.add_modulation(add, name, size, n)
  layers.add_linear(add, name .. ".linear", size, n * size)
end

--- Returns them, each [B, 1, C], from the conditions [B, C] behind their activation.
function patches.modulation(params, name, conditions, n, o)
  return unpack(blocks.linear(params, name, conditions, o):unsqueeze(1):chunk(n, -1))
end

--- A norm without weights, scaled and shifted.
function patches.norm(x, shift, scale, own_eps)
  return torch.layer_norm(x, { x:size(-1) }, nil, nil, own_eps or eps) * (scale + 1) + shift
end

function patches.add_feed_forward(add, name, size)
  layers.add_linear(add, name .. ".net.0.proj", size, 4 * size)
  layers.add_linear(add, name .. ".net.2", 4 * size, size)
end

patches.feed_forward = blocks.new_mlp(blocks.activation("transformer", "gelu_new"),
  { ".net.0.proj", ".net.2" })

-- Raises an error unless latents fit the model and can be cut into patches.
local function check_latents(c, x)
  if torch.is_tensor(x) and x:dim() == 4 and x:size(1) == c.in_channels
    and x:size(2) % c.patch_size == 0 and x:size(3) % c.patch_size == 0 then
    return
  end
  fail("transformer: sample is %s, expected [batch, %d, height, width], both multiples of %d",
    torch.is_tensor(x) and "[" .. table.concat(x.shape, ", ") .. "]" or tostring(x), c.in_channels,
    c.patch_size)
end

--- Returns forward(params, sample, timesteps, told, options) -> like sample. facts:
---   options: reads the options of a call; check(c, sample, told, options)
---   max: the stored positions are for `max` x `max` patches; nil: there are none
---   apply(params, x [B, T, C], timesteps [B], told, options) -> x, shift, scale of the last norm
---   out: the name of the last layer; channels: of its output
function patches.new_forward(c, facts)
  return function(params, sample, timesteps, told, options)
    local o = facts.options(options)
    check_latents(c, sample)
    facts.check(c, sample, told, o)
    local x, height, width = embed(c, params, sample:to(params["pos_embed.proj.weight"].dtype),
      facts.max)
    local y, shift, scale = facts.apply(params, x, time_of.times_of(timesteps, sample), told, o)
    y = blocks.linear(params, facts.out, patches.norm(y, shift, scale), o)
    return join(y, height, width, c.patch_size, facts.channels)
  end
end

return patches
