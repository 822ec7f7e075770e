--- Multi-head latent attention (DeepSeek-AI, 2024): keys and values are projections of one short
--- vector for each token, the latent, which the cache holds instead of them. A part of each head
--- has rotary positions; all heads share that part of the keys. Shapes: B batch, T new tokens, S
--- tokens seen so far, H heads.
local blocks = require "redco.models.layers.blocks"
local native = require "redco.native"
local torch = require "redco.torch"

local attention = {}

local function key_size(c) return c.qk_nope_head_dim + c.qk_rope_head_dim end

--- As llama_attention.add_parameters.
function attention.add_parameters(c, _, name, linear, norm)
  local width, n_heads = c.hidden_size, c.num_attention_heads
  if c.q_lora_rank then
    linear(name .. ".q_a_proj", width, c.q_lora_rank, c.attention_bias)
    norm(name .. ".q_a_layernorm", { c.q_lora_rank })
    linear(name .. ".q_b_proj", c.q_lora_rank, n_heads * key_size(c), false)
  else
    linear(name .. ".q_proj", width, n_heads * key_size(c), false)
  end
  linear(name .. ".kv_a_proj_with_mqa", width, c.kv_lora_rank + c.qk_rope_head_dim,
    c.attention_bias)
  norm(name .. ".kv_a_layernorm", { c.kv_lora_rank })
  linear(name .. ".kv_b_proj", c.kv_lora_rank, n_heads * (c.qk_nope_head_dim + c.v_head_dim), false)
  linear(name .. ".o_proj", n_heads * c.v_head_dim, width, c.attention_bias)
end

-- The factor of the scores: YaRN's mscale_all_dim changes it too.
local function scale_of(c)
  local scaling, mscale = c.rope_scaling, 1
  if scaling and (scaling.mscale_all_dim or 0) ~= 0 and scaling.factor > 1 then
    mscale = 0.1 * scaling.mscale_all_dim * math.log(scaling.factor) + 1
  end
  return mscale * mscale / math.sqrt(key_size(c))
end

--- As llama_attention.new.
function attention.new(c, facts)
  local n_heads, scale = c.num_attention_heads, scale_of(c)
  local rank, turned, plain, v_size = c.kv_lora_rank, c.qk_rope_head_dim, c.qk_nope_head_dim,
    c.v_head_dim
  local turn = facts.turn

  -- With the epsilon of transformers, whatever rms_norm_eps is.
  local function norm(params, name, x) return facts.norm.apply(params, name, x, 1e-6) end

  -- The layers that read a latent are split by heads, so each model shard needs all of it.
  local function projected(params, name, x, o)
    return native.whole_on_shards(blocks.linear(params, name, x, o))
  end

  -- Returns the parts of q without and with positions, [B, H, T, plain] and [B, H, T, turned].
  local function queries(params, name, x, angles, o)
    local y
    if c.q_lora_rank then
      y = norm(params, name .. ".q_a_layernorm", projected(params, name .. ".q_a_proj", x, o))
      y = blocks.linear(params, name .. ".q_b_proj", y, o)
    else
      y = blocks.linear(params, name .. ".q_proj", x, o)
    end
    local q_plain, q_turned = unpack(blocks.split_heads(y, n_heads):split({ plain, turned }, -1))
    return q_plain, turn(q_turned, unpack(angles))
  end

  -- Returns the latents [B, 1, T, rank] and the part of k that all heads share, [B, 1, T, turned].
  local function latents(params, name, x, angles, o)
    local y = projected(params, name .. ".kv_a_proj_with_mqa", x, o)
    local latent, k = unpack(y:split({ rank, turned }, -1))
    return norm(params, name .. ".kv_a_layernorm", latent):unsqueeze(1),
      turn(k:unsqueeze(1), unpack(angles))
  end

  -- Attends with the keys and values of all heads.
  local function with_heads(params, name, q, latent, k_turned, given, o)
    local y = blocks.linear(params, name .. ".kv_b_proj", latent:squeeze(1), o)
    local k, v = unpack(blocks.split_heads(y, n_heads):split({ plain, v_size }, -1))
    local shared = k_turned:expand { k:size(0), n_heads, k:size(2), turned }
    k = torch.cat({ k, shared }, -1)
    -- Fused attention needs values of the size of keys.
    local missing = k:size(-1) - v_size
    if missing > 0 then v = torch.constant_pad_nd(v, { 0, missing }, 0) end
    local heads = blocks.attend(torch.cat(q, -1), k, v, given, o)
    return missing > 0 and heads:narrow(-1, 0, v_size) or heads
  end

  -- Attends with the latents as keys and values of one head: applies kv_b_proj to q and to the
  -- output instead of to all tokens.
  local function with_latents(params, name, q, latent, k_turned, given, o)
    local weight = params[name .. ".kv_b_proj.weight"]:view { 1, n_heads, plain + v_size, rank }
    local of_k, of_v = unpack(weight:split({ plain, v_size }, 2))
    local k = torch.cat({ latent, k_turned }, -1)
    local heads = blocks.attend(torch.cat({ q[1]:matmul(of_k), q[2] }, -1), k, k,
      { seen = given.seen, dropout = given.dropout, scale = scale,
        enable_gqa = true }, o)
    return heads:narrow(-1, 0, rank):matmul(of_v:transpose(-1, -2))
  end

  return function(params, name, x, angles, mask, o)
    local q = { queries(params, name, x, angles, o) }
    local latent, k_turned = latents(params, name, x, angles, o)
    if o.cache then latent, k_turned = o.cache:extend(name, latent, k_turned) end
    local has_adapter = params[name .. ".kv_b_proj.lora_A.weight"]
    local attend = (has_adapter or blocks.is_prompt(o)) and with_heads or with_latents
    local y = attend(params, name, q, latent, k_turned,
      { seen = mask, dropout = c.attention_dropout, scale = scale }, o)
    return blocks.linear(params, name .. ".o_proj", blocks.merge_heads(y), o)
  end
end

return attention
