--- The autoencoder of Stable Diffusion, SDXL and their kind (Rombach et al., 2022), as diffusers'
--- `AutoencoderKL`: pictures to the mean and log-variance of latents, and latents to pictures.
local blocks = require "redco.models.layers.blocks"
local config = require "redco.diffusion.config"
local fail = require "redco.fail"
local layers = require "redco.diffusion.layers"
local nn = require "redco.nn"
local torch = require "redco.torch"

local none = config.none
local eps = 1e-6

local vae = {
  class_name = "AutoencoderKL",
  architecture = "AutoencoderKL",
  base_model_prefix = "vae",
  keys = {
    act_fn = { "silu", "text" },
    block_out_channels = { { 64 }, "sizes" },
    down_block_types = { { "DownEncoderBlock2D" }, "texts" },
    force_upcast = { true, "boolean" },
    in_channels = { 3, "size" },
    latent_channels = { 4, "size" },
    latents_mean = { none, "numbers" },
    latents_std = { none, "numbers" },
    layers_per_block = { 1, "size" },
    mid_block_add_attention = { true, "boolean" },
    norm_num_groups = { 32, "size" },
    out_channels = { 3, "size" },
    sample_size = { 32, "size_or_list" },
    scaling_factor = { 0.18215, "number" },
    shift_factor = { none, "number" },
    up_block_types = { { "UpDecoderBlock2D" }, "texts" },
    use_post_quant_conv = { true, "boolean" },
    use_quant_conv = { true, "boolean" },
  },
  only = {},
}

local block_types = { down_block_types = "DownEncoderBlock2D", up_block_types = "UpDecoderBlock2D" }

function vae.check(c, where)
  for key, name in pairs(block_types) do
    if #c[key] ~= #c.block_out_channels then
      fail("%s: %s has %d entries, expected one for each of the %d block_out_channels", where, key,
        #c[key], #c.block_out_channels)
    end
    for _, given in ipairs(c[key]) do
      if given ~= name then
        fail("%s: %s has '%s', which is not supported, only %s", where, key, given, name)
      end
    end
  end
  config.check_multiples(where, "block_out_channels", c.block_out_channels, "norm_num_groups",
    c.norm_num_groups)
  blocks.activation(where, c.act_fn)
end

-- The older names of the layers of attention.
local older = { query = "to_q", key = "to_k", value = "to_v", proj_attn = "to_out.0" }

function vae.current_name(name)
  local head, part, last = name:match "^(.*attentions%.%d+%.)([%w_]+)(%.%w+)$"
  return older[part] and head .. older[part] .. last or name
end

-- The down or up blocks: {{name, sizes of resnets, sampler}, ...}.
local function encoder_blocks(c)
  local list, before = {}, c.block_out_channels[1]
  for i, size in ipairs(c.block_out_channels) do
    local block = { name = ("encoder.down_blocks.%d"):format(i - 1), size = size, resnets = {},
      sampler = i < #c.block_out_channels and ".downsamplers.0.conv" or nil }
    for j = 1, c.layers_per_block do block.resnets[j] = { j == 1 and before or size, size } end
    list[i], before = block, size
  end
  return list
end

local function decoder_blocks(c)
  local list, n = {}, #c.block_out_channels
  local before = c.block_out_channels[n]
  for i = 1, n do
    local size = c.block_out_channels[n + 1 - i]
    local block = { name = ("decoder.up_blocks.%d"):format(i - 1), size = size, resnets = {},
      sampler = i < n and ".upsamplers.0.conv" or nil }
    for j = 1, c.layers_per_block + 1 do block.resnets[j] = { j == 1 and before or size, size } end
    list[i], before = block, size
  end
  return list
end

local function add_blocks(add, list)
  for _, block in ipairs(list) do
    for j, sizes in ipairs(block.resnets) do
      layers.add_resnet(add, ("%s.resnets.%d"):format(block.name, j - 1), sizes[1], sizes[2])
    end
    if block.sampler then
      layers.add_conv(add, block.name .. block.sampler, block.size, block.size, 3)
    end
  end
end

local function add_middle(add, name, size, has_attention)
  for j = 0, 1 do layers.add_resnet(add, ("%s.resnets.%d"):format(name, j), size, size) end
  if not has_attention then return end
  layers.add_norm(add, name .. ".attentions.0.group_norm", size)
  layers.add_attention(add, name .. ".attentions.0", size, size)
end

function vae.add_parameters(c, add)
  local sizes, latent = c.block_out_channels, c.latent_channels
  local first, last = sizes[1], sizes[#sizes]
  layers.add_conv(add, "encoder.conv_in", c.in_channels, first, 3)
  add_blocks(add, encoder_blocks(c))
  add_middle(add, "encoder.mid_block", last, c.mid_block_add_attention)
  layers.add_norm(add, "encoder.conv_norm_out", last)
  layers.add_conv(add, "encoder.conv_out", last, 2 * latent, 3)
  if c.use_quant_conv then layers.add_conv(add, "quant_conv", 2 * latent, 2 * latent, 1) end
  if c.use_post_quant_conv then layers.add_conv(add, "post_quant_conv", latent, latent, 1) end
  layers.add_conv(add, "decoder.conv_in", latent, last, 3)
  add_middle(add, "decoder.mid_block", last, c.mid_block_add_attention)
  add_blocks(add, decoder_blocks(c))
  layers.add_norm(add, "decoder.conv_norm_out", first)
  layers.add_conv(add, "decoder.conv_out", first, c.out_channels, 3)
end

local function check_input(what, x, channels)
  if torch.is_tensor(x) and x:dim() == 4 and x:size(1) == channels then return end
  fail("vae: %s are %s, expected [batch, %d, height, width]", what, torch.is_tensor(x)
    and "[" .. table.concat(x.shape, ", ") .. "]" or tostring(x), channels)
end

-- Returns functions of the parts that encoder and decoder share.
local function shared(c)
  local activation = blocks.activation("vae", c.act_fn)
  local resnet = layers.new_resnet { activation = activation, groups = c.norm_num_groups,
    eps = eps }

  local function attend(params, name, x, o)
    local y = layers.pixels_as_tokens(
      layers.group_norm(params, name .. ".group_norm", x, c.norm_num_groups, eps))
    return x + layers.tokens_as_pixels(layers.attention(params, name, y, nil, 1, nil, o), x)
  end

  return {
    resnets = function(params, block, x, o)
      for j = 0, #block.resnets - 1 do
        x = nn.block(resnet, params, ("%s.resnets.%d"):format(block.name, j), x, nil, o)
      end
      return x
    end,
    middle = function(params, name, x, o)
      x = resnet(params, name .. ".resnets.0", x, nil, o)
      if c.mid_block_add_attention then x = attend(params, name .. ".attentions.0", x, o) end
      return resnet(params, name .. ".resnets.1", x, nil, o)
    end,
    out = function(params, name, x)
      x = layers.group_norm(params, name .. ".conv_norm_out", x, c.norm_num_groups, eps)
      return layers.conv(params, name .. ".conv_out", torch.silu(x))
    end,
  }
end

function vae.new_functions(c)
  local parts, down, up = shared(c), encoder_blocks(c), decoder_blocks(c)
  local functions = {}

  function functions.encode(params, images)
    local o = {}
    check_input("images", images, c.in_channels)
    local x = layers.conv(params, "encoder.conv_in",
      images:to(params["encoder.conv_in.weight"].dtype))
    for _, block in ipairs(down) do
      x = parts.resnets(params, block, x, o)
      if block.sampler then x = layers.downsample(params, block.name .. block.sampler, x, 0) end
    end
    x = parts.out(params, "encoder", parts.middle(params, "encoder.mid_block", x, o))
    if c.use_quant_conv then x = layers.conv(params, "quant_conv", x) end
    local mean, logvar = unpack(x:chunk(2, 1))
    return mean, logvar:clamp(-30, 20)
  end

  function functions.decode(params, latents)
    local o = {}
    check_input("latents", latents, c.latent_channels)
    local x = latents:to(params["decoder.conv_in.weight"].dtype)
    if c.use_post_quant_conv then x = layers.conv(params, "post_quant_conv", x) end
    x = parts.middle(params, "decoder.mid_block", layers.conv(params, "decoder.conv_in", x), o)
    for _, block in ipairs(up) do
      x = parts.resnets(params, block, x, o)
      if block.sampler then
        x = layers.upsample(params, block.name .. block.sampler, x, 2 * x:size(2), 2 * x:size(3))
      end
    end
    return parts.out(params, "decoder", x)
  end

  return functions
end

return vae
