--- Blocks in which patches of latents and tokens of the text attend to both, each with weights of
--- their own, as Stable Diffusion 3 (Esser et al., 2024) and Flux have them. The facts of a model:
---   num_attention_heads, attention_head_dim
---   qk_norm: whether q and k have norms
---   rotate(x [B, H, T, D]): gives q and k of patches and text their positions, or nil
--- and of a block: name, is_last (the text ends there), is_dual (patches attend to each other once
--- more).
local blocks = require "redco.models.layers.blocks"
local fail = require "redco.fail"
local layers = require "redco.diffusion.layers"
local patches = require "redco.diffusion.patches"
local time_of = require "redco.diffusion.unet_time"
local torch = require "redco.torch"

local joint = {}

--- Declares norms of q and k.
function joint.add_norms(c, add, name, suffixes)
  for _, suffix in ipairs(c.qk_norm and suffixes or {}) do
    add(name .. suffix .. ".weight", { c.attention_head_dim }, blocks.ones)
  end
end

--- Declares a block for tokens of this size.
function joint.add_block(c, add, block, size)
  local attention, text = block.name .. ".attn", block.name .. ".norm1_context"
  patches.add_modulation(add, block.name .. ".norm1", size, block.is_dual and 9 or 6)
  patches.add_modulation(add, text, size, block.is_last and 2 or 6)
  layers.add_attention(add, attention, size, size)
  for _, part in ipairs { ".add_q_proj", ".add_k_proj", ".add_v_proj" } do
    layers.add_linear(add, attention .. part, size, size)
  end
  joint.add_norms(c, add, attention, { ".norm_q", ".norm_k", ".norm_added_q", ".norm_added_k" })
  if block.is_dual then
    layers.add_attention(add, block.name .. ".attn2", size, size)
    joint.add_norms(c, add, block.name .. ".attn2", { ".norm_q", ".norm_k" })
  end
  patches.add_feed_forward(add, block.name .. ".ff", size)
  if block.is_last then return end
  layers.add_linear(add, attention .. ".to_add_out", size, size)
  patches.add_feed_forward(add, block.name .. ".ff_context", size)
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

--- All tokens attend to each other with the same weights.
function joint.attend(c, params, name, x, o)
  local q, k, v = heads_of(c, params, name, x, of_patches[1], of_patches[2], o)
  if c.rotate then q, k = c.rotate(q), c.rotate(k) end
  return blocks.attention(q, k, v, {}, o)
end

-- Patches and text attend to each other and to themselves. Returns the results of both.
local function attend_jointly(c, params, name, x, text, o)
  local q, k, v = heads_of(c, params, name, x, of_patches[1], of_patches[2], o)
  local q_2, k_2, v_2 = heads_of(c, params, name, text, of_text[1], of_text[2], o)
  q, k = torch.cat({ q, q_2 }, 2), torch.cat({ k, k_2 }, 2)
  if c.rotate then q, k = c.rotate(q), c.rotate(k) end
  local y = blocks.attention(q, k, torch.cat({ v, v_2 }, 2), {}, o)
  local n = x:size(1)
  return y:narrow(1, 0, n), y:narrow(1, n, text:size(1))
end

--- Returns the patches and the text behind a block.
function joint.apply_block(c, params, block, x, text, conditions, o)
  local name = block.name
  local function modulation(part, n)
    return { patches.modulation(params, name .. part .. ".linear", conditions, n, o) }
  end
  local own, its = modulation(".norm1", block.is_dual and 9 or 6),
    modulation(".norm1_context", block.is_last and 2 or 6)
  local function feed_forward(part, y, m)
    return y + m[6] * patches.feed_forward(params, name .. part, patches.norm(y, m[4], m[5]), o)
  end
  -- In the last block, the norm of the text has its scale before its shift.
  local seen, told = attend_jointly(c, params, name .. ".attn", patches.norm(x, own[1], own[2]),
    patches.norm(text, its[block.is_last and 2 or 1], its[block.is_last and 1 or 2]), o)
  local y = x + own[3] * blocks.linear(params, name .. ".attn.to_out.0", seen, o)
  if block.is_dual then
    local alone = joint.attend(c, params, name .. ".attn2", patches.norm(x, own[7], own[8]), o)
    y = y + own[9] * blocks.linear(params, name .. ".attn2.to_out.0", alone, o)
  end
  y = feed_forward(".ff", y, own)
  if block.is_last then return y end
  text = text + its[3] * blocks.linear(params, name .. ".attn.to_add_out", told, o)
  return y, feed_forward(".ff_context", text, its)
end

--- Declares the layers of the time, the text's features, and with `has_guidance` of the guidance.
function joint.add_conditions(c, add, size, has_guidance)
  layers.add_embedding(add, "time_text_embed.timestep_embedder", 256, size)
  if has_guidance then layers.add_embedding(add, "time_text_embed.guidance_embedder", 256, size) end
  layers.add_embedding(add, "time_text_embed.text_embedder", c.pooled_projection_dim, size)
end

--- Returns the time, the features of the text and, if it is given, the guidance [B, C], behind the
--- activation.
function joint.conditions(params, timesteps, features, guidance, dtype, o)
  local function embedded(name, x)
    return layers.embedding(params, "time_text_embed." .. name, x:to(dtype), torch.silu, o)
  end
  local function waves(numbers) return time_of.sinusoids(numbers, 256, true, 0) end
  local sum = embedded("timestep_embedder", waves(timesteps)) + embedded("text_embedder", features)
  return torch.silu(guidance and sum + embedded("guidance_embedder", waves(guidance)) or sum)
end

--- Raises an error unless the texts of a call fit.
function joint.check_texts(c, sample, text, o)
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

return joint
