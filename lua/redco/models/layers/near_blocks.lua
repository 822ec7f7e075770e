--- Attention of tokens to those near them, read in blocks of L tokens, so that memory grows with
--- the length T of the text times L. Shapes: B rows, n blocks, H heads of D, G more keys.
local blocks = require "redco.models.layers.blocks"
local torch = require "redco.torch"

local near_blocks = {}

-- Pads dimension 1 of x.
local function padded(x, before, after)
  local sizes = {}
  for _ = 1, 2 * (x:dim() - 2) do sizes[#sizes + 1] = 0 end
  sizes[#sizes + 1], sizes[#sizes + 2] = before, after
  return torch.constant_pad_nd(x, sizes, 0)
end

--- Splits x [B, T, ...] into blocks [B, n, L, ...]; the last one is padded with zeros.
function near_blocks.split(x, length)
  local n = math.ceil(x:size(1) / length)
  return padded(x, 0, n * length - x:size(1)):view { x:size(0), n, length, unpack(x.shape, 3) }
end

-- Returns each block of x [B, T, ...] with those beside it: [B, n, 3 L, ...].
local function with_neighbours(x, length)
  local all = near_blocks.split(x, length)
  local n = all:size(1)
  all = padded(all, 1, 1)
  return torch.cat({ all:narrow(1, 0, n), all:narrow(1, 1, n), all:narrow(1, 2, n) }, 2)
end

--- Returns what is added to scores: 0, or a low number where `seen` is false.
function near_blocks.additive(seen, dtype)
  return torch.zeros_like(seen, { dtype = dtype })
    :masked_fill(seen:logical_not(), dtype == "float16" and -6e4 or -1e10)
end

--- Returns which keys the tokens of each block see, [B, n, L, 3 L]: those less than L tokens away,
--- where both `queries` and `keys` [B, T] are true.
function near_blocks.seen(queries, keys, length)
  local places = torch.arange(3 * length, { device = keys.device })
  local is_near = (places - places:narrow(0, length, length):unsqueeze(1)):abs():lt(length)
  return near_blocks.split(queries, length):unsqueeze(-1)
    :logical_and(with_neighbours(keys, length):unsqueeze(2)):logical_and(is_near)
end

--- Returns the attention of x [B, T, size] to its blocks and to `more` [B, G, size] or nil:
--- [B, T, H * D]. project(part, x) returns q, k or v of x; given.mask is [B * n, 1 or H, L,
--- 3 L + G].
function near_blocks.attention(x, more, length, n_heads, project, given, o)
  local batch, n_tokens = x:size(0), x:size(1)
  -- [B, T, H * D] -> [B * n, H, L or 3 L + G, D]
  local function heads(part, split)
    local y = split(project(part, x), length)
    if more and part ~= "q" then
      local z = project(part, more):unsqueeze(1)
      y = torch.cat({ y, z:expand { batch, y:size(1), -1, -1 } }, 2)
    end
    return blocks.split_heads(y:flatten(0, 1), n_heads)
  end
  local y = blocks.attention(heads("q", near_blocks.split), heads("k", with_neighbours),
    heads("v", with_neighbours), given, o)
  return y:reshape { batch, -1, y:size(-1) }:narrow(1, 0, n_tokens)
end

return near_blocks
