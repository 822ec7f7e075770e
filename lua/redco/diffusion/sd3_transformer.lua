--- The transformer of Stable Diffusion 3 and 3.5 (Esser et al., 2024), diffusers'
--- `SD3Transformer2DModel`.
local arguments = require "redco.arguments"
local blocks = require "redco.models.layers.blocks"
local config = require "redco.diffusion.config"
local fail = require "redco.fail"
local joint = require "redco.diffusion.joint_blocks"
local layers = require "redco.diffusion.layers"
local patches = require "redco.diffusion.patches"

local sd3 = {
  class_name = "SD3Transformer2DModel",
  architecture = "SD3Transformer2DModel",
  base_model_prefix = "transformer",
  buffers = { ["pos_embed.pos_embed"] = true },
  keys = {
    attention_head_dim = { 64, "size" },
    caption_projection_dim = { 1152, "size" },
    dual_attention_layers = { {}, "places" },
    in_channels = { 16, "size" },
    joint_attention_dim = { 4096, "size" },
    num_attention_heads = { 18, "size" },
    num_layers = { 18, "size" },
    out_channels = { 16, "size" },
    patch_size = { 2, "size" },
    pooled_projection_dim = { 2048, "size" },
    pos_embed_max_size = { 96, "size" },
    qk_norm = { config.none, "text" },
    sample_size = { 128, "size" },
  },
  only = {},
}

function sd3.check(c, where)
  local size = patches.size(c)
  if c.caption_projection_dim ~= size or size % 4 ~= 0 then
    fail("%s: caption_projection_dim is %d, and num_attention_heads * attention_head_dim is %d: "
      .. "expected the same multiple of 4", where, c.caption_projection_dim, size)
  end
  if c.qk_norm and c.qk_norm ~= "rms_norm" then
    fail("%s: qk_norm = '%s' is not supported, only 'rms_norm' and null", where, c.qk_norm)
  end
  for _, i in ipairs(c.dual_attention_layers) do
    if i >= c.num_layers then
      fail("%s: dual_attention_layers has %d, expected numbers below num_layers (%d)", where, i,
        c.num_layers)
    end
  end
end

-- The facts of each block.
local function blocks_of(c)
  local list = {}
  for i = 0, c.num_layers - 1 do
    list[i + 1] = { name = ("transformer_blocks.%d"):format(i), is_last = i == c.num_layers - 1 }
  end
  for _, i in ipairs(c.dual_attention_layers) do list[i + 1].is_dual = true end
  return list
end

function sd3.add_parameters(c, add)
  local size = patches.size(c)
  patches.add_parameters(c, add, size, c.pos_embed_max_size)
  joint.add_conditions(c, add, size)
  layers.add_linear(add, "context_embedder", c.joint_attention_dim, size)
  for _, block in ipairs(blocks_of(c)) do joint.add_block(c, add, block, size) end
  patches.add_modulation(add, "norm_out", size, 2)
  layers.add_linear(add, "proj_out", size, c.patch_size ^ 2 * c.out_channels)
end

local call_options = arguments("transformer", { train = false }, { "rng", "pooled_projections" })

function sd3.new_functions(c)
  local list = blocks_of(c)
  local function apply(params, x, timesteps, text, o)
    local conditions = joint.conditions(params, timesteps, o.pooled_projections, nil, x.dtype, o)
    text = blocks.linear(params, "context_embedder", text:to(x.dtype), o)
    for _, block in ipairs(list) do
      x, text = joint.apply_block(c, params, block, x, text, conditions, o)
    end
    local scale, shift = patches.modulation(params, "norm_out.linear", conditions, 2, o)
    return x, shift, scale
  end
  return { forward = patches.new_forward(c, { options = call_options, check = joint.check_texts,
    apply = apply, out = "proj_out", channels = c.out_channels, max = c.pos_embed_max_size }) }
end

return sd3
