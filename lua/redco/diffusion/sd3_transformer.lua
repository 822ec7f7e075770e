--- The transformer of Stable Diffusion 3 and 3.5 (Esser et al., 2024), diffusers'
--- `SD3Transformer2DModel`: patches of latents and tokens of the text attend to both, each with
--- weights of their own.
local arguments = require "redco.arguments"
local blocks = require "redco.models.blocks"
local config = require "redco.diffusion.config"
local fail = require "redco.fail"
local layers = require "redco.diffusion.layers"
local patches = require "redco.diffusion.patches"
local time_of = require "redco.diffusion.unet_time"
local torch = require "redco.torch"

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

-- The facts of each block: name, is_last (the text ends there), is_dual (patches attend to each
-- other once more).
local function blocks_of(c)
  local list = {}
  for i = 0, c.num_layers - 1 do
    list[i + 1] = { name = ("transformer_blocks.%d"):format(i), is_last = i == c.num_layers - 1 }
  end
  for _, i in ipairs(c.dual_attention_layers) do list[i + 1].is_dual = true end
  return list
end

local function add_norms(c, add, name, suffixes)
  for _, suffix in ipairs(c.qk_norm and suffixes or {}) do
    add(name .. suffix .. ".weight", { c.attention_head_dim }, blocks.ones)
  end
end

local function add_block(c, add, block, size)
  local attention, text = block.name .. ".attn", block.name .. ".norm1_context"
  patches.add_modulation(add, block.name .. ".norm1", size, block.is_dual and 9 or 6)
  patches.add_modulation(add, text, size, block.is_last and 2 or 6)
  layers.add_attention(add, attention, size, size)
  for _, part in ipairs { ".add_q_proj", ".add_k_proj", ".add_v_proj" } do
    layers.add_linear(add, attention .. part, size, size)
  end
  add_norms(c, add, attention, { ".norm_q", ".norm_k", ".norm_added_q", ".norm_added_k" })
  if block.is_dual then
    layers.add_attention(add, block.name .. ".attn2", size, size)
    add_norms(c, add, block.name .. ".attn2", { ".norm_q", ".norm_k" })
  end
  patches.add_feed_forward(add, block.name .. ".ff", size)
  if block.is_last then return end
  layers.add_linear(add, attention .. ".to_add_out", size, size)
  patches.add_feed_forward(add, block.name .. ".ff_context", size)
end

function sd3.add_parameters(c, add)
  local size = patches.size(c)
  patches.add_parameters(c, add, size, c.pos_embed_max_size)
  layers.add_embedding(add, "time_text_embed.timestep_embedder", 256, size)
  layers.add_embedding(add, "time_text_embed.text_embedder", c.pooled_projection_dim, size)
  layers.add_linear(add, "context_embedder", c.joint_attention_dim, size)
  for _, block in ipairs(blocks_of(c)) do add_block(c, add, block, size) end
  patches.add_modulation(add, "norm_out", size, 2)
  layers.add_linear(add, "proj_out", size, c.patch_size ^ 2 * c.out_channels)
end

-- Returns q, k and v, each [B, H, T, D]: of layers with these suffixes, and norms of q and k.
local function heads_of(c, params, name, x, suffixes, norms, o)
  local parts = {}
  for i, suffix in ipairs(suffixes) do
    parts[i] = blocks.split_heads(blocks.linear(params, name .. suffix, x, o),
      c.num_attention_heads)
    if c.qk_norm and norms[i] then
      parts[i] = blocks.rms_norm(params, name .. norms[i], parts[i], 1e-6)
    end
  end
  return unpack(parts)
end

local of_patches = { { ".to_q", ".to_k", ".to_v" }, { ".norm_q", ".norm_k" } }
local of_text = { { ".add_q_proj", ".add_k_proj", ".add_v_proj" },
  { ".norm_added_q", ".norm_added_k" } }

-- Patches attend to each other.
local function attend(c, params, name, x, o)
  local q, k, v = heads_of(c, params, name, x, of_patches[1], of_patches[2], o)
  return blocks.linear(params, name .. ".to_out.0", blocks.attention(q, k, v, {}, o), o)
end

-- Patches and text attend to both. Returns the results of both.
local function attend_jointly(c, params, name, x, text, o)
  local q, k, v = heads_of(c, params, name, x, of_patches[1], of_patches[2], o)
  local q_2, k_2, v_2 = heads_of(c, params, name, text, of_text[1], of_text[2], o)
  local y = blocks.attention(torch.cat({ q, q_2 }, 2), torch.cat({ k, k_2 }, 2),
    torch.cat({ v, v_2 }, 2), {}, o)
  local n = x:size(1)
  return y:narrow(1, 0, n), y:narrow(1, n, text:size(1))
end

local function apply_block(c, params, block, x, text, conditions, o)
  local name = block.name
  local function modulation(part, n)
    return { patches.modulation(params, name .. part .. ".linear", conditions, n, o) }
  end
  local own, its = modulation(".norm1", block.is_dual and 9 or 6),
    modulation(".norm1_context", block.is_last and 2 or 6)
  local function feed_forward(part, y, m)
    return y + m[6] * patches.feed_forward(params, name .. part, patches.norm(y, m[4], m[5]), o)
  end
  -- The norm of a text that ends has its scale first.
  local seen, told = attend_jointly(c, params, name .. ".attn", patches.norm(x, own[1], own[2]),
    patches.norm(text, its[block.is_last and 2 or 1], its[block.is_last and 1 or 2]), o)
  local y = x + own[3] * blocks.linear(params, name .. ".attn.to_out.0", seen, o)
  if block.is_dual then
    y = y + own[9] * attend(c, params, name .. ".attn2", patches.norm(x, own[7], own[8]), o)
  end
  y = feed_forward(".ff", y, own)
  if block.is_last then return y end
  text = text + its[3] * blocks.linear(params, name .. ".attn.to_add_out", told, o)
  return y, feed_forward(".ff_context", text, its)
end

-- The time and the features of the text [B, C], behind the activation.
local function conditions_of(params, timesteps, features, dtype, o)
  local name, waves = "time_text_embed", time_of.sinusoids(timesteps, 256, true, 0):to(dtype)
  return torch.silu(layers.embedding(params, name .. ".timestep_embedder", waves, torch.silu, o)
    + layers.embedding(params, name .. ".text_embedder", features:to(dtype), torch.silu, o))
end

local call_options = arguments("transformer", { train = false }, { "rng", "pooled_projections" })

local function check_texts(c, sample, text, o)
  local batch, pooled = sample:size(0), o.pooled_projections
  local function shape(t)
    return torch.is_tensor(t) and "[" .. table.concat(t.shape, ", ") .. "]" or tostring(t)
  end
  if not torch.is_tensor(text) or text:dim() ~= 3 or text:size(0) ~= batch
    or text:size(2) ~= c.joint_attention_dim then
    fail("transformer: encoder_hidden_states are %s, expected [%d, length, %d]", shape(text), batch,
      c.joint_attention_dim)
  end
  if not torch.is_tensor(pooled) or pooled:dim() ~= 2 or pooled:size(0) ~= batch
    or pooled:size(1) ~= c.pooled_projection_dim then
    fail("transformer: pooled_projections are %s, expected [%d, %d]", shape(pooled), batch,
      c.pooled_projection_dim)
  end
end

function sd3.new_functions(c)
  local list = blocks_of(c)
  local function apply(params, x, timesteps, text, o)
    local conditions = conditions_of(params, timesteps, o.pooled_projections, x.dtype, o)
    text = blocks.linear(params, "context_embedder", text:to(x.dtype), o)
    for _, block in ipairs(list) do
      x, text = apply_block(c, params, block, x, text, conditions, o)
    end
    local scale, shift = patches.modulation(params, "norm_out.linear", conditions, 2, o)
    return x, shift, scale
  end
  return { forward = patches.new_forward(c, { options = call_options, check = check_texts,
    apply = apply, out = "proj_out", channels = c.out_channels, max = c.pos_embed_max_size }) }
end

return sd3
