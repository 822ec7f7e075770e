--- Attention with rotary positions, by the facts of llama_like.lua.
local blocks = require "redco.models.layers.blocks"
local rotary = require "redco.models.layers.rotary"

local attention = {}

local names = { ".q_proj", ".k_proj", ".v_proj" }

local function sizes_of(c)
  local size = rotary.head_dim(c)
  local kv_size = c.num_key_value_heads * size
  return { c.num_attention_heads * size, kv_size, kv_size }
end

--- Adds the parameters of the layer `name`. `linear(name, n_in, n_out, bias)` and
--- `norm(name, sizes, kind)` add those of a part, `add` one.
function attention.add_parameters(c, facts, name, linear, norm, add)
  local width, sizes, size = c.hidden_size, sizes_of(c), rotary.head_dim(c)
  if facts.joins_qkv then
    linear(name .. ".qkv_proj", width, sizes[1] + sizes[2] + sizes[3], facts.qkv_bias)
  else
    for k = 1, 3 do
      linear(name .. names[k], width, (k == 1 and facts.is_gated and 2 or 1) * sizes[k],
        facts.qkv_bias)
    end
  end
  local norm_sizes = {
    head = function() return { size } end,
    own = function(k) return { sizes[k] / size, size } end,
    projection = function(k) return { sizes[k] } end,
  }
  for k = 1, facts.head_norms and 2 or 0 do
    norm(name .. "." .. facts.head_norm_names[k], norm_sizes[facts.head_norms](k), facts.head_norm)
  end
  blocks.add_linear(add, name .. "." .. facts.o_name, sizes[1], width,
    blocks.normal(facts.o_range or c.initializer_range), facts.o_bias)
  if facts.has_sinks then
    add(name .. ".sinks", { c.num_attention_heads }, blocks.normal(c.initializer_range))
  end
end

--- Returns function(params, name, x, angles, mask, o). The angles are cos and sin for
--- `facts.turn`, or empty, and query_scale [B or 1, 1, T, 1] where the row has one.
function attention.new(c, facts)
  local n_heads = { c.num_attention_heads, c.num_key_value_heads, c.num_key_value_heads }
  local sizes, which, head_dim = sizes_of(c), facts.head_norms, rotary.head_dim(c)
  local kind, turn = facts.head_norm or facts.norm, facts.turn

  -- Returns q, k and v, each [B, T, size].
  local function projected(params, name, x, o)
    if facts.joins_qkv then
      return blocks.linear(params, name .. ".qkv_proj", x, o):split(sizes, -1)
    end
    local parts = {}
    for k = 1, 3 do parts[k] = blocks.linear(params, name .. names[k], x, o) end
    return parts
  end

  -- Splits q [B, T, 2 * size] of heads with gates into q and the gates [B, T, size].
  local function gated(q)
    local heads = q:view { q:size(0), q:size(1), n_heads[1], 2 * head_dim }
    q, heads = unpack(heads:chunk(2, -1))
    return q:flatten(2), heads:flatten(2)
  end

  -- Returns part k of q, k and v as heads [B, H, T, D], with norm and positions.
  local function heads(params, name, k, x, angles)
    local function norm(y)
      return kind.apply(params, name .. "." .. facts.head_norm_names[k], y, facts.eps)
    end
    local of_heads = k < 3 and which and which ~= "projection"
    if k < 3 and which == "projection" then x = norm(x) end
    if facts.clamp then x = x:clamp(-facts.clamp, facts.clamp) end
    x = x:view { x:size(0), x:size(1), n_heads[k], head_dim }
    if of_heads and not facts.turns_first then x = norm(x) end
    x = x:transpose(1, 2)
    if k < 3 and angles and angles[1] then x = turn(x, unpack(angles)) end
    if of_heads and facts.turns_first then x = norm(x) end
    return k == 1 and angles and angles.query_scale and x * angles.query_scale or x
  end

  return function(params, name, x, angles, mask, o)
    local parts, gate = projected(params, name, x, o), nil
    if facts.is_gated then parts[1], gate = gated(parts[1]) end
    for k = 1, 3 do parts[k] = heads(params, name, k, parts[k], angles) end
    local q, k, v = unpack(parts)
    if o.cache then k, v = o.cache:extend(name, k, v) end
    local y = blocks.attention(q, k, v, {
      seen = mask, dropout = c.attention_dropout,
      scale = facts.attention_scale, softcap = facts.softcap, enable_gqa = n_heads[2] < n_heads[1],
      sinks = facts.has_sinks and params[name .. ".sinks"] or nil,
    }, o)
    if gate then y = y * gate:sigmoid() end
    return blocks.linear(params, name .. "." .. facts.o_name, y, o)
  end
end

return attention
