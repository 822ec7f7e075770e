--- DiT (Peebles and Xie, 2023), a transformer that draws pictures of classes, as diffusers'
--- `DiTTransformer2DModel`.
local arguments = require "redco.arguments"
local blocks = require "redco.models.layers.blocks"
local config = require "redco.diffusion.config"
local fail = require "redco.fail"
local layers = require "redco.diffusion.layers"
local patches = require "redco.diffusion.patches"
local time_of = require "redco.diffusion.unet_time"
local torch = require "redco.torch"

local none = config.none

local dit = {
  class_name = "DiTTransformer2DModel",
  older_class_name = "Transformer2DModel",  -- in the first published folders
  architecture = "DiTTransformer2DModel",
  base_model_prefix = "transformer",
  keys = {
    attention_bias = { true, "boolean" },
    attention_head_dim = { 72, "size" },
    dropout = { 0.0, "share" },
    in_channels = { 4, "size" },
    norm_eps = { 1e-5, "number" },
    norm_num_groups = { 32, "size" },
    num_attention_heads = { 16, "size" },
    num_embeds_ada_norm = { 1000, "size" },
    num_layers = { 28, "size" },
    out_channels = { none, "size" },
    patch_size = { 2, "size" },
    sample_size = { 32, "size" },
    upcast_attention = { false, "boolean" },
  },
  only = { activation_fn = "gelu-approximate", norm_elementwise_affine = false,
    norm_type = "ada_norm_zero" },
}

local function out_channels(c) return c.out_channels or c.in_channels end

function dit.check(c, where)
  if patches.size(c) % 4 ~= 0 then
    fail("%s: num_attention_heads * attention_head_dim is %d, expected a multiple of 4", where,
      patches.size(c))
  end
  if c.sample_size % c.patch_size ~= 0 then
    fail("%s: sample_size (%d) is not a multiple of patch_size (%d)", where, c.sample_size,
      c.patch_size)
  end
end

local function block_name(i) return ("transformer_blocks.%d"):format(i) end

function dit.add_parameters(c, add)
  local size = patches.size(c)
  patches.add_parameters(c, add, size)
  for i = 0, c.num_layers - 1 do
    local name = block_name(i)
    -- The last row is of pictures of no class.
    add(name .. ".norm1.emb.class_embedder.embedding_table.weight",
      { c.num_embeds_ada_norm + 1, size }, blocks.normal(1))
    layers.add_embedding(add, name .. ".norm1.emb.timestep_embedder", 256, size)
    patches.add_modulation(add, name .. ".norm1", size, 6)
    layers.add_attention(add, name .. ".attn1", size, size, c.attention_bias)
    patches.add_feed_forward(add, name .. ".ff", size)
  end
  layers.add_linear(add, "proj_out_1", size, 2 * size)
  layers.add_linear(add, "proj_out_2", size, c.patch_size ^ 2 * out_channels(c))
end

-- Returns the embedding of the time and the class [B, C] for a block, after the activation.
local function conditions_of(params, name, waves, labels, o)
  name = name .. ".norm1.emb"
  return torch.silu(layers.embedding(params, name .. ".timestep_embedder", waves, torch.silu, o)
    + blocks.embedding(params, name .. ".class_embedder.embedding_table", labels))
end

local function apply_block(c, params, name, x, conditions, o)
  local shift, scale, gate, shift_2, scale_2, gate_2 =
    patches.modulation(params, name .. ".norm1.linear", conditions, 6, o)
  local y = patches.norm(x, shift, scale)
  y = layers.attention(params, name .. ".attn1", y, nil, c.num_attention_heads, nil, o)
  x = x + gate * blocks.dropout(y, c.dropout, o)
  y = patches.feed_forward(params, name .. ".ff", patches.norm(x, shift_2, scale_2, c.norm_eps), o)
  return x + gate_2 * blocks.dropout(y, c.dropout, o)
end

local call_options = arguments("transformer", { train = false }, { "rng" })

local function check_labels(_, sample, labels)
  if torch.is_tensor(labels) and labels:dim() == 1 and labels:size(0) == sample:size(0)
    and labels.dtype == "int64" then
    return
  end
  fail("transformer: class_labels are %s, expected int64 [%d]", torch.is_tensor(labels)
    and labels.dtype .. " [" .. table.concat(labels.shape, ", ") .. "]" or tostring(labels),
    sample:size(0))
end

function dit.new_functions(c)
  local function apply(params, x, timesteps, labels, o)
    local waves, first = time_of.sinusoids(timesteps, 256, true, 1):to(x.dtype), nil
    for i = 0, c.num_layers - 1 do
      local conditions = conditions_of(params, block_name(i), waves, labels, o)
      first = first or conditions
      x = apply_block(c, params, block_name(i), x, conditions, o)
    end
    return x, patches.modulation(params, "proj_out_1", first, 2, o)
  end
  return { forward = patches.new_forward(c, { options = call_options, check = check_labels,
    apply = apply, out = "proj_out_2", channels = out_channels(c) }) }
end

return dit
