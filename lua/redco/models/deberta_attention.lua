--- The attention of DeBERTa: scores add products of q with embeddings of the positions of keys
--- relative to it ("c2p"), and products of k with those of queries ("p2c"). T is the length.
local blocks = require "redco.models.blocks"
local torch = require "redco.torch"

local attention = {}

-- The kinds of relative scores, from a list or from "c2p|p2c".
local function relative_kinds(c)
  local found, given = { n = 0 }, c.pos_att_type or {}
  for _, kind in ipairs(type(given) == "table" and given or {}) do found[kind] = true end
  if type(given) == "string" then
    for kind in given:lower():gmatch "[^|%s]+" do found[kind] = true end
  end
  for _, kind in ipairs { "c2p", "p2c" } do
    if found[kind] then found.n = found.n + 1 end
  end
  return found
end

--- Returns the number of embeddings on each side of a token, and the longest distance.
function attention.span_of(c)
  local most = c.max_relative_positions < 1 and c.max_position_embeddings
    or c.max_relative_positions
  return c.position_buckets > 0 and c.position_buckets or most, most
end

-- Returns the rows [T, T] of the embeddings of relative positions, for queries and keys. Distances
-- from the half of the buckets on share buckets, of growing width.
local function rows_of(c, length, device)
  local span, most = attention.span_of(c)
  local places = torch.arange(length, { device = device })
  local distance = places:unsqueeze(1) - places:unsqueeze(0)
  if c.position_buckets > 0 then
    local half = math.floor(c.position_buckets / 2)
    local far = distance:abs():clamp(half):float()
    -- In float32, as in transformers, where rounding decides between two buckets.
    local widest = torch.tensor({ (most - 1) / half }, { dtype = "float32", device = device }):log()
    local bucket = ((far / half):log() / widest * (half - 1)):ceil() + half
    distance = torch.where(distance:abs():le(half), distance:float(), bucket * distance:sign())
      :to "int64"
  end
  return (distance + span):clamp(0, 2 * span - 1), (span - distance):clamp(0, 2 * span - 1)
end

--- Declares the parameters: `linear(name, n_in, n_out)` adds a layer.
function attention.add_parameters(c, name, linear)
  local size, kinds = c.hidden_size, relative_kinds(c)
  for _, part in ipairs { "query", "key", "value" } do
    linear(name .. part .. "_proj", size, size)
  end
  if c.relative_attention and not c.share_att_key then
    if kinds.c2p then linear(name .. "pos_key_proj", size, size) end
    if kinds.p2c then linear(name .. "pos_query_proj", size, size) end
  end
end

--- Returns function(params, name, x, mask, positions, o), which returns the merged heads. `mask` is
--- added to the scores; `positions` are the embeddings of relative positions, or nil.
function attention.new(c)
  local n_heads, kinds = c.num_attention_heads, relative_kinds(c)
  local scale = 1 / math.sqrt(c.hidden_size / n_heads * (1 + kinds.n))
  local position_key = c.share_att_key and "key_proj" or "pos_key_proj"
  local position_query = c.share_att_key and "query_proj" or "pos_query_proj"

  -- Products of x [B, H, T, D] with each relative position, then those of `rows` [T, T].
  local function relative(params, name, x, positions, rows, o)
    local p = blocks.split_heads(blocks.linear(params, name, positions, o), n_heads)
    local all = x:matmul(p:transpose(-1, -2))
    return all:gather(-1, rows:expand { x:size(0), n_heads, -1, -1 })
  end

  return function(params, name, x, mask, positions, o)
    local function heads(part)
      return blocks.split_heads(blocks.linear(params, name .. part, x, o), n_heads)
    end
    local q, k, v = heads "query_proj", heads "key_proj", heads "value_proj"
    local added = mask
    if positions and kinds.n > 0 then
      positions = blocks.dropout(positions:unsqueeze(0), c.hidden_dropout_prob, o)
      local rows, back = rows_of(c, x:size(1), x.device)
      local scores
      if kinds.c2p then
        scores = relative(params, name .. position_key, q, positions, rows, o)
      end
      if kinds.p2c then
        local turned = relative(params, name .. position_query, k, positions, back, o)
          :transpose(-1, -2)
        scores = scores and scores + turned or turned
      end
      added = mask and scores * scale + mask or scores * scale
    end
    return blocks.attention(q, k, v, { mask = added, scale = scale,
      dropout = c.attention_probs_dropout_prob }, o)
  end
end

return attention
