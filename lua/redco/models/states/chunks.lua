--- Chunks of a sequence: a recurrent layer computes each as products of matrices, and passes its
--- state from chunk to chunk. Shapes: T tokens, n chunks of L tokens.
local torch = require "redco.torch"

local chunks = {}

local most = 64  -- tokens of a chunk

--- Returns the number of chunks and their length for `length` tokens.
function chunks.sizes(length)
  local size = math.min(length, most)
  return math.ceil(length / size), size
end

--- Returns x [B, T, ...] as [B, n, L, ...], with zeros at the end.
function chunks.split(x, n, size)
  local shape, missing = { x:size(0), n, size }, n * size - x:size(1)
  for d = 2, x:dim() - 1 do shape[d + 2] = x:size(d) end
  if missing > 0 then
    local padding = {}
    for i = 1, 2 * (x:dim() - 1) do padding[i] = 0 end
    padding[#padding] = missing
    x = torch.constant_pad_nd(x, padding, 0)
  end
  return x:reshape(shape)
end

--- Returns x [B, n, L, ...] as [B, T, ...].
function chunks.join(x, length)
  return x:flatten(1, 2):narrow(1, 0, length)
end

--- Returns the decays [..., L, L] from token j to i of sums [..., L] of the logarithms of decays,
--- with zeros where j is after i.
function chunks.decays(sums)
  local size = sums:size(-1)
  local is_after = torch.ones({ size, size }, { dtype = "bool", device = sums.device }):triu(1)
  return (sums:unsqueeze(-1) - sums:unsqueeze(-2)):masked_fill(is_after, -math.huge):exp()
end

--- Returns the inverse of I + x, where x [..., L, L] has zeros on and above the diagonal: from that
--- of blocks on the diagonal that of blocks of twice their size.
function chunks.inverse(x)
  local size = x:size(-1)
  local place = torch.arange(size, { device = x.device })
  local inverse = torch.eye(size, { dtype = x.dtype, device = x.device })
  local block = 1
  while block < size do
    local own = place:div(block, { rounding_mode = "floor" })
    local pair = own:div(2, { rounding_mode = "floor" })
    local is_below = pair:unsqueeze(1):eq(pair):logical_and(own:unsqueeze(1):gt(own))
    local below = x:masked_fill(is_below:logical_not(), 0)
    inverse = inverse - (block == 1 and below or inverse:matmul(below):matmul(inverse))
    block = 2 * block
  end
  return inverse
end

return chunks
