--- The attention of DeBERTa: scores add products of q with embeddings of the positions of keys
--- relative to it ("c2p"), and products of k with those of queries ("p2c"). T is the length.
local blocks = require "redco.models.layers.blocks"
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

-- Returns the rows [T, T] of the embeddings of relative positions, for queries and for keys.
-- Distances beyond half of the buckets share buckets of growing width.
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

-- The projections of later models and of the first DeBERTa (`joined`): names of the layers of
-- relative positions, add_parameters for q, k and v, and `heads`, which computes q, k and v.
local separate = { position_key = "pos_key_proj", position_query = "pos_query_proj" }

function separate.add_parameters(size, name, linear)
  for _, part in ipairs { "query", "key", "value" } do
    linear(name .. part .. "_proj", size, size)
  end
end

function separate.heads(params, name, x, n_heads, o)
  local parts = {}
  for k, part in ipairs { "query_proj", "key_proj", "value_proj" } do
    parts[k] = blocks.split_heads(blocks.linear(params, name .. part, x, o), n_heads)
  end
  return unpack(parts)
end

local joined = { position_key = "pos_proj", position_query = "pos_q_proj", lacks_key_bias = true }

function joined.add_parameters(size, name, linear, bias)
  linear(name .. "in_proj", size, 3 * size, false)
  bias(name .. "q_bias")
  bias(name .. "v_bias")
end

function joined.heads(params, name, x, n_heads, o)
  local q, k, v = blocks.split_fused_heads(blocks.linear(params, name .. "in_proj", x, o), n_heads)
  local function bias(part)
    return blocks.split_heads(params[name .. part]:view { 1, 1, -1 }, n_heads)
  end
  return q + bias "q_bias", k, v + bias "v_bias"
end

local function projections_of(c) return c.model_type == "deberta" and joined or separate end

--- Declares the parameters: `linear(name, n_in, n_out, bias)` adds a layer, `bias(name)` a vector.
function attention.add_parameters(c, name, linear, bias)
  local size, kinds, own = c.hidden_size, relative_kinds(c), projections_of(c)
  own.add_parameters(size, name, linear, bias)
  if c.relative_attention and not c.share_att_key then
    if kinds.c2p then linear(name .. own.position_key, size, size, not own.lacks_key_bias) end
    if kinds.p2c then linear(name .. own.position_query, size, size) end
  end
end

--- Returns function(params, name, x, mask, positions, o), which returns the merged heads. `mask` is
--- added to the scores; `positions` are the embeddings of relative positions, or nil.
function attention.new(c)
  local n_heads, kinds = c.num_attention_heads, relative_kinds(c)
  local scale = 1 / math.sqrt(c.hidden_size / n_heads * (1 + kinds.n))
  local own = projections_of(c)
  local position_key = c.share_att_key and "key_proj" or own.position_key
  local position_query = c.share_att_key and "query_proj" or own.position_query

  -- Multiplies x [B, H, T, D] with each relative position, then gathers the products at `rows`
  -- [T, T].
  local function relative(params, name, x, positions, rows, o)
    local p = blocks.split_heads(blocks.linear(params, name, positions, o), n_heads)
    local all = x:matmul(p:transpose(-1, -2))
    return all:gather(-1, rows:expand { x:size(0), n_heads, -1, -1 })
  end

  return function(params, name, x, mask, positions, o)
    local q, k, v = own.heads(params, name, x, n_heads, o)
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
