--- Attention with rotary positions, by the facts of llama_like.lua.
local blocks = require "redco.models.blocks"
local rotary = require "redco.models.rotary"

local attention = {}

local names = { ".q_proj", ".k_proj", ".v_proj" }
local norm_names = { ".q_norm", ".k_norm" }

local function sizes_of(c)
  local size = rotary.head_dim(c)
  local kv_size = c.num_key_value_heads * size
  return { c.num_attention_heads * size, kv_size, kv_size }
end

--- Adds the parameters of the layer `name`. `linear(name, n_in, n_out, bias)` and
--- `norm(name, size)` add those of a part.
function attention.add_parameters(c, facts, name, linear, norm)
  local width, sizes = c.hidden_size, sizes_of(c)
  if facts.is_joined then
    linear(name .. ".qkv_proj", width, sizes[1] + sizes[2] + sizes[3], facts.qkv_bias)
  else
    for k = 1, 3 do linear(name .. names[k], width, sizes[k], facts.qkv_bias) end
  end
  for k = 1, facts.head_norms and 2 or 0 do
    norm(name .. norm_names[k], facts.head_norms == "head" and rotary.head_dim(c) or sizes[k])
  end
  linear(name .. ".o_proj", sizes[1], width, facts.o_bias)
end

--- Returns function(params, name, x, {cos, sin} or nil, mask, o).
function attention.new(c, facts)
  local n_heads = { c.num_attention_heads, c.num_key_value_heads, c.num_key_value_heads }
  local sizes, which, head_dim = sizes_of(c), facts.head_norms, rotary.head_dim(c)

  -- Returns q, k and v, each [B, T, size].
  local function projected(params, name, x, o)
    if facts.is_joined then
      return blocks.linear(params, name .. ".qkv_proj", x, o):split(sizes, -1)
    end
    local parts = {}
    for k = 1, 3 do parts[k] = blocks.linear(params, name .. names[k], x, o) end
    return parts
  end

  -- Returns part k of q, k and v as heads [B, H, T, D], with norm and positions.
  local function heads(params, name, k, x, angles)
    local function norm(y) return facts.norm(params, name .. norm_names[k], y, c[facts.eps]) end
    if k < 3 and which == "projection" then x = norm(x) end
    if facts.clamp then x = x:clamp(-facts.clamp, facts.clamp) end
    x = x:view { x:size(0), x:size(1), n_heads[k], head_dim }
    if k < 3 and which == "head" then x = norm(x) end
    x = x:transpose(1, 2)
    return k < 3 and angles and rotary.turn_halves(x, unpack(angles)) or x
  end

  return function(params, name, x, angles, mask, o)
    local parts = projected(params, name, x, o)
    for k = 1, 3 do parts[k] = heads(params, name, k, parts[k], angles) end
    local q, k, v = unpack(parts)
    if o.cache then k, v = o.cache:extend(name, k, v) end
    local y = blocks.attention(q, k, v, {
      mask = mask.mask, causal = mask.causal, dropout = c.attention_dropout,
      scale = facts.attention_scale, softcap = facts.softcap, enable_gqa = n_heads[2] < n_heads[1],
    }, o)
    return blocks.linear(params, name .. ".o_proj", y, o)
  end
end

return attention
