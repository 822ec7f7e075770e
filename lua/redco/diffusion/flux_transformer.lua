--- The transformer of Flux (Black Forest Labs, 2024), diffusers' `FluxTransformer2DModel`: blocks
--- with weights of their own for patches and text, then blocks that treat both alike. Latents are
--- whole pictures here; a token has 2 x 2 of them. Positions are rotary.
local arguments = require "redco.arguments"
local blocks = require "redco.models.layers.blocks"
local config = require "redco.diffusion.config"
local fail = require "redco.fail"
local joint = require "redco.diffusion.joint_blocks"
local layers = require "redco.diffusion.layers"
local patches = require "redco.diffusion.patches"
local rotary = require "redco.models.layers.rotary"
local time_of = require "redco.diffusion.unet_time"
local torch = require "redco.torch"

local side = 2  -- of a patch
local theta = 10000

local flux = {
  class_name = "FluxTransformer2DModel",
  architecture = "FluxTransformer2DModel",
  base_model_prefix = "transformer",
  keys = {
    attention_head_dim = { 128, "size" },
    axes_dims_rope = { { 16, 56, 56 }, "sizes" },
    guidance_embeds = { false, "boolean" },
    in_channels = { 64, "size" },
    joint_attention_dim = { 4096, "size" },
    num_attention_heads = { 24, "size" },
    num_layers = { 19, "size" },
    num_single_layers = { 38, "size" },
    out_channels = { config.none, "size" },
    pooled_projection_dim = { 768, "size" },
  },
  only = { patch_size = 1 },
}

function flux.check(c, where)
  local sum = 0
  for _, size in ipairs(c.axes_dims_rope) do sum = sum + size end
  config.check_multiples(where, "axes_dims_rope", c.axes_dims_rope, "the size of a pair", 2)
  if #c.axes_dims_rope ~= 3 or sum ~= c.attention_head_dim then
    fail("%s: axes_dims_rope has %d sizes with the sum %d, expected 3 with the sum "
      .. "attention_head_dim (%d)", where, #c.axes_dims_rope, sum, c.attention_head_dim)
  end
  if c.in_channels % side ^ 2 ~= 0 or c.out_channels and c.out_channels ~= c.in_channels then
    fail("%s: in_channels is %d and out_channels %s, expected the same multiple of %d", where,
      c.in_channels, c.out_channels, side ^ 2)
  end
end

--- Returns the shape of latents for sampling; other models have it in their configurations.
function flux.latents(c)
  return { channels = c.in_channels / side ^ 2, patch = side, sample_size = 128 }
end

local function name_of(i) return ("transformer_blocks.%d"):format(i) end

local function single_name(i) return ("single_transformer_blocks.%d"):format(i) end

local function new_facts(c, rotate)
  return { num_attention_heads = c.num_attention_heads, attention_head_dim = c.attention_head_dim,
    qk_norm = true, rotate = rotate }
end

function flux.add_parameters(c, add)
  local size, facts = patches.size(c), new_facts(c)
  layers.add_linear(add, "x_embedder", c.in_channels, size)
  joint.add_conditions(c, add, size, c.guidance_embeds)
  layers.add_linear(add, "context_embedder", c.joint_attention_dim, size)
  for i = 0, c.num_layers - 1 do joint.add_block(facts, add, { name = name_of(i) }, size) end
  for i = 0, c.num_single_layers - 1 do
    local name = single_name(i)
    patches.add_modulation(add, name .. ".norm", size, 3)
    for _, part in ipairs { ".attn.to_q", ".attn.to_k", ".attn.to_v" } do
      layers.add_linear(add, name .. part, size, size)
    end
    joint.add_norms(facts, add, name .. ".attn", { ".norm_q", ".norm_k" })
    layers.add_linear(add, name .. ".proj_mlp", size, 4 * size)
    layers.add_linear(add, name .. ".proj_out", 5 * size, size)
  end
  patches.add_modulation(add, "norm_out", size, 2)
  layers.add_linear(add, "proj_out", size, c.in_channels)
end

-- [B, C, H, W] -> [B, T, 4 C]
local function packed(x)
  local b, channels, height, width = unpack(x.shape)
  return x:view { b, channels, height / side, side, width / side, side }
    :permute { 0, 2, 4, 1, 3, 5 }:reshape { b, height * width / side ^ 2, channels * side ^ 2 }
end

-- The inverse.
local function unpacked(x, height, width)
  local channels = x:size(2) / side ^ 2
  return x:view { x:size(0), height / side, width / side, channels, side, side }
    :permute { 0, 3, 1, 4, 2, 5 }:reshape { x:size(0), channels, height, width }
end

-- Angles [T, size / 2] of places [T].
local function angles_of(places, size)
  local rates = torch.pow(theta, torch.arange(0, size, 2,
    { dtype = "float64", device = places.device }) / -size)
  return places:unsqueeze(1) * rates:unsqueeze(0)
end

-- Returns function(x [B, H, T, D]), which rotates pairs by the positions of the patches, row by
-- row. The `n_text` tokens after the patches stay as they are.
local function new_rotation(c, height, width, n_text, device)
  local float64 = { dtype = "float64", device = device }
  local rows = torch.arange(0, height, float64):repeat_interleave(width)
  local columns = torch.arange(0, width, float64):tile { height }
  local sizes = c.axes_dims_rope
  local of_patches = torch.cat({ angles_of(rows * 0, sizes[1]), angles_of(rows, sizes[2]),
    angles_of(columns, sizes[3]) }, 1)
  local angles = torch.constant_pad_nd(of_patches, { 0, 0, 0, n_text }, 0)
  local cos, sin = angles:cos():float(), angles:sin():float()
  return function(x) return rotary.turn_neighbours(x:float(), cos, sin):to(x.dtype) end
end

local gelu = blocks.activation("transformer", "gelu_new")

local function apply_single(facts, params, name, x, conditions, o)
  local shift, scale, gate = patches.modulation(params, name .. ".norm.linear", conditions, 3, o)
  local y = patches.norm(x, shift, scale)
  local attended = joint.attend(facts, params, name .. ".attn", y, o)
  local mlp = gelu(blocks.linear(params, name .. ".proj_mlp", y, o))
  return x + gate * blocks.linear(params, name .. ".proj_out", torch.cat({ attended, mlp }, -1), o)
end

local call_options = arguments("transformer", { train = false },
  { "rng", "pooled_projections", "guidance" })

local function check_call(c, sample, text, o)
  local channels = c.in_channels / side ^ 2
  if not torch.is_tensor(sample) or sample:dim() ~= 4 or sample:size(1) ~= channels
    or sample:size(2) % side ~= 0 or sample:size(3) % side ~= 0 then
    fail("transformer: sample is %s, expected [batch, %d, height, width], both multiples of %d",
      torch.is_tensor(sample) and "[" .. table.concat(sample.shape, ", ") .. "]"
        or tostring(sample), channels, side)
  end
  joint.check_texts(c, sample, text, o)
  if c.guidance_embeds and not o.guidance then
    fail("transformer: guidance is missing, a number or [batch]: the configuration has "
      .. "guidance_embeds")
  end
end

function flux.new_functions(c)
  local function forward(params, sample, timesteps, text, options)
    local o = call_options(options)
    check_call(c, sample, text, o)
    local dtype, height, width = params["x_embedder.weight"].dtype, sample:size(2), sample:size(3)
    local x = blocks.linear(params, "x_embedder", packed(sample:to(dtype)), o)
    local guidance = c.guidance_embeds and time_of.times_of(o.guidance, sample) * 1000
    local conditions = joint.conditions(params, time_of.times_of(timesteps, sample),
      o.pooled_projections, guidance, dtype, o)
    text = blocks.linear(params, "context_embedder", text:to(dtype), o)
    local n_patches, n_text = x:size(1), text:size(1)
    local facts = new_facts(c, new_rotation(c, height / side, width / side, n_text, x.device))
    for i = 0, c.num_layers - 1 do
      x, text = joint.apply_block(facts, params, { name = name_of(i) }, x, text, conditions, o)
    end
    local both = torch.cat({ x, text }, 1)
    for i = 0, c.num_single_layers - 1 do
      both = apply_single(facts, params, single_name(i), both, conditions, o)
    end
    local scale, shift = patches.modulation(params, "norm_out.linear", conditions, 2, o)
    x = patches.norm(both:narrow(1, 0, n_patches), shift, scale)
    return unpacked(blocks.linear(params, "proj_out", x, o), height, width)
  end
  return { forward = forward }
end

return flux
