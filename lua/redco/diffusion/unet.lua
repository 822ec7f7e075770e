--- The UNet of Stable Diffusion (Rombach et al., 2022) and SDXL (Podell et al., 2023), diffusers'
--- `UNet2DConditionModel`.
local arguments = require "redco.arguments"
local blocks = require "redco.models.layers.blocks"
local config = require "redco.diffusion.config"
local fail = require "redco.fail"
local layers = require "redco.diffusion.layers"
local names_of = require "redco.names_of"
local nn = require "redco.nn"
local plan_of = require "redco.diffusion.unet_plan"
local time_of = require "redco.diffusion.unet_time"
local torch = require "redco.torch"
local transformer = require "redco.diffusion.transformer_2d"

local none = config.none

local unet = {
  class_name = "UNet2DConditionModel",
  architecture = "UNet2DConditionModel",
  base_model_prefix = "unet",
  accepts_cache = true,  -- of the keys and values of the text
  keys = {
    act_fn = { "silu", "text" },
    addition_embed_type = { none, "text" },
    addition_embed_type_num_heads = { 64, "size" },
    addition_time_embed_dim = { none, "size" },
    attention_head_dim = { 8, "size_or_list" },
    block_out_channels = { { 320, 640, 1280, 1280 }, "sizes" },
    center_input_sample = { false, "boolean" },
    conv_in_kernel = { 3, "size" },
    conv_out_kernel = { 3, "size" },
    cross_attention_dim = { 1280, "size_or_list" },
    down_block_types = { { "CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D",
      "DownBlock2D" }, "texts" },
    downsample_padding = { 1, "padding" },
    dropout = { 0.0, "share" },
    flip_sin_to_cos = { true, "boolean" },
    freq_shift = { 0, "number" },
    in_channels = { 4, "size" },
    layers_per_block = { 2, "size_or_list" },
    mid_block_type = { "UNetMidBlock2DCrossAttn", "text" },
    norm_eps = { 1e-5, "number" },
    norm_num_groups = { 32, "size" },
    num_class_embeds = { none, "size" },
    only_cross_attention = { false, "boolean_or_list" },
    out_channels = { 4, "size" },
    projection_class_embeddings_input_dim = { none, "size" },
    sample_size = { none, "size_or_list" },
    time_cond_proj_dim = { none, "size" },
    time_embedding_dim = { none, "size" },
    transformer_layers_per_block = { 1, "size_or_list" },
    up_block_types = { { "UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D",
      "CrossAttnUpBlock2D" }, "texts" },
    upcast_attention = { false, "boolean" },  -- attention adds up in float32 in any case
    use_linear_projection = { false, "boolean" },
  },
  only = {
    attention_type = "default", class_embed_type = none, class_embeddings_concat = false,
    cross_attention_norm = none, dual_cross_attention = false, encoder_hid_dim = none,
    encoder_hid_dim_type = none, mid_block_only_cross_attention = none, mid_block_scale_factor = 1,
    num_attention_heads = none, resnet_out_scale_factor = 1, resnet_skip_time_act = false,
    resnet_time_scale_shift = "default", reverse_transformer_layers_per_block = none,
    time_embedding_act_fn = none, time_embedding_type = "positional", timestep_post_act = none,
  },
}

function unet.check(c, where)
  plan_of(c, where)
  time_of.check(c, where)
  blocks.activation(where, c.act_fn)
end

function unet.add_parameters(c, add)
  local plan = plan_of(c, unet.class_name)
  local n_time = time_of.add_parameters(c, add)
  local first = c.block_out_channels[1]
  layers.add_conv(add, "conv_in", c.in_channels, first, c.conv_in_kernel)
  for _, block in ipairs(plan.blocks) do
    for i, sizes in ipairs(block.resnets) do
      layers.add_resnet(add, ("%s.resnets.%d"):format(block.name, i - 1), sizes[1], sizes[2],
        n_time)
    end
    for i = 0, block.n_attentions - 1 do
      transformer.add_parameters(add, ("%s.attentions.%d"):format(block.name, i), block.size,
        block.attention)
    end
    if block.sampler then
      layers.add_conv(add, block.name .. block.sampler, block.size, block.size, 3)
    end
  end
  layers.add_norm(add, "conv_norm_out", first)
  layers.add_conv(add, "conv_out", first, c.out_channels, c.conv_out_kernel)
end

local function check_inputs(c, sample, text)
  if not torch.is_tensor(sample) or sample:dim() ~= 4 or sample:size(1) ~= c.in_channels then
    fail("unet: sample is %s, expected [batch, %d, height, width]",
      torch.is_tensor(sample) and "[" .. table.concat(sample.shape, ", ") .. "]"
      or tostring(sample), c.in_channels)
  end
  if not torch.is_tensor(text) or text:dim() ~= 3 or text:size(0) ~= sample:size(0) then
    fail("unet: encoder_hidden_states are %s, expected [%d, length, size] for a sample [%s]",
      torch.is_tensor(text) and "[" .. table.concat(text.shape, ", ") .. "]" or tostring(text),
      sample:size(0), table.concat(sample.shape, ", "))
  end
end

local call_options = arguments("unet", { train = false }, { "rng", "text_embeds", "time_ids",
  "encoder_attention_mask", "class_labels", "timestep_cond", "cache" })

-- Returns the mask to add to the scores of the text, [B, 1, 1, T], or nil.
local function text_mask(o, like)
  local mask = o.encoder_attention_mask
  return mask and mask:to(like.dtype):sub(1):mul(10000):unsqueeze(1):unsqueeze(1)
end

local function new_forward(c)
  local plan, activation = plan_of(c, unet.class_name), blocks.activation("unet", c.act_fn)
  local resnet = layers.new_resnet { activation = activation, groups = c.norm_num_groups,
    eps = c.norm_eps, dropout = c.dropout > 0 and c.dropout }

  return function(params, sample, timesteps, text, options)
    local o = call_options(options)
    check_inputs(c, sample, text)
    local dtype = params["conv_in.weight"].dtype
    sample, text = sample:to(dtype), text:to(dtype)
    local time, mask = time_of.embed(c, params, timesteps, sample, o), text_mask(o, sample)
    if c.center_input_sample then sample = sample * 2 - 1 end

    local x = layers.conv(params, "conv_in", sample)
    local skips = { x }
    for _, block in ipairs(plan.blocks) do
      for i = 0, #block.resnets - 1 do
        if block.is_up then x = torch.cat({ x, table.remove(skips) }, 1) end
        x = nn.block(resnet, params, ("%s.resnets.%d"):format(block.name, i), x, time, o)
        if i < block.n_attentions then
          x = transformer.apply(params, ("%s.attentions.%d"):format(block.name, i), x, text, mask,
            block.attention, o)
        end
        if block.is_down then skips[#skips + 1] = x end
      end
      if block.sampler and block.is_down then
        x = layers.downsample(params, block.name .. block.sampler, x, c.downsample_padding)
        skips[#skips + 1] = x
      elseif block.sampler then
        local next_skip = skips[#skips]
        x = layers.upsample(params, block.name .. block.sampler, x, next_skip:size(2),
          next_skip:size(3))
      end
    end
    x = layers.group_norm(params, "conv_norm_out", x, c.norm_num_groups, c.norm_eps)
    return layers.conv(params, "conv_out", activation(x))
  end
end

function unet.new_functions(c) return { forward = new_forward(c) } end

-- Layers that write to the stream between blocks, or read it alone. If they are not split, the
-- stream is not split either, so that a residual block sends only the sum of its outputs.
local of_stream = { "conv_in", "proj_in", "proj_out", "conv_shortcut", "downsamplers.0.conv",
  "upsamplers.0.conv", "conv_out" }

--- Returns the rules of params_sharding_rules for parameters whose names begin with `prefix`.
function unet.sharding_rules(params, prefix)
  local names, rules = table.concat(names_of(params), "\n"), {}
  for _, layer in ipairs(of_stream) do
    if names:find(layer .. ".weight", 1, true) then
      rules[#rules + 1] = { prefix .. "*" .. layer .. ".*", "replicate" }
    end
  end
  return rules
end

return unet
