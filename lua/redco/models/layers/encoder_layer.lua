--- The two parts of a layer of encoders built as BERT is, by the facts of bert_like.lua.
local blocks = require "redco.models.layers.blocks"
local rotary = require "redco.models.layers.rotary"

local layer = {}

--- Adds the parameters of the layer whose names begin with `name`, but for its norms.
--- `linear(name, n_in, n_out, bias)` adds those of a linear layer.
function layer.add_parameters(c, facts, name, linear)
  local keys, names, without = facts.keys, facts.names, facts.without_bias or {}
  local size, inner = c[keys.size], c[keys.inner]
  local function add(part, prefix, n_in, n_out)
    if names[part] then linear(name .. prefix .. names[part], n_in, n_out, not without[part]) end
  end
  for _, part in ipairs { "q", "k", "v", "out" } do add(part, names.attention, size, size) end
  add("qkv", names.attention, size, 3 * size)
  add("up", "", size, inner)
  add("gate", "", size, inner)
  add("up_gate", "", size, 2 * inner)
  add("down", "", inner, size)
end

--- Whether positions turn queries and keys.
function layer.is_rotary(c, facts)
  if type(facts.rotary) == "function" then return facts.rotary(c) end
  return facts.rotary
end

-- Attention with rotary positions; q, k and v are one projection or three.
local function new_rotary_attention(c, facts)
  local keys, names = facts.keys, facts.names
  local size = c[keys.size]
  local sizes, n_heads = { size, size, size }, c[keys.heads]

  local function projected(params, name, x, o)
    if names.qkv then return blocks.linear(params, name .. names.qkv, x, o):split(sizes, -1) end
    local parts = {}
    for k, part in ipairs { "q", "k", "v" } do
      parts[k] = blocks.linear(params, name .. names[part], x, o)
    end
    return parts
  end

  return function(params, name, x, mask, o)
    local parts = projected(params, name, x, o)
    for k = 1, 3 do parts[k] = blocks.split_heads(parts[k], n_heads) end
    for k = 1, 2 do parts[k] = rotary.turn_halves(parts[k], unpack(mask.angles)) end
    local y = blocks.attention(parts[1], parts[2], parts[3],
      { mask = mask.mask, dropout = c[keys.attention_dropout] }, o)
    return blocks.linear(params, name .. names.out, y, o)
  end
end

--- Returns function(params, name, x, mask, o) -> [B, T, size]. `mask` has the mask [B, 1 or H, 1 or
--- T, T], or nil, and the angles of rotary positions.
function layer.new_attention(c, facts)
  if layer.is_rotary(c, facts) then return new_rotary_attention(c, facts) end
  local keys = facts.keys
  return blocks.new_attention(c[keys.heads], facts.names, c[keys.attention_dropout]).to_itself
end

--- Returns function(params, name, x, o) -> [B, T, size], the feed-forward layer.
function layer.new_feed_forward(c, facts)
  local keys, names = facts.keys, facts.names
  local activation = blocks.activation(c.model_type, c[keys.activation])
  local halves = { c[keys.inner], c[keys.inner] }
  return function(params, name, x, o)
    local function linear(part, y) return blocks.linear(params, name .. names[part], y, o) end
    local y
    if names.up_gate then
      local up, gate = unpack(linear("up_gate", x):split(halves, -1))
      y = blocks.gated(activation, gate, up)
    elseif names.gate then
      y = blocks.gated(activation, linear("gate", x), linear("up", x))
    else
      y = activation(linear("up", x))
    end
    if facts.drops_inner then y = blocks.dropout(y, c[keys.dropout], o) end
    return linear("down", y)
  end
end

return layer
