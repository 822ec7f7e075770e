--- Biases of attention by the distance of two tokens, as T5 has them.
local blocks = require "redco.models.blocks"
local torch = require "redco.torch"

-- Returns the bucket of each distance >= 0: half of the `n` buckets hold one distance each, the
-- others grow logarithmically up to `max_distance`.
local function buckets(distance, n, max_distance)
  local n_exact = math.floor(n / 2)
  -- In the order of transformers, so that bucket borders round alike.
  local far = (distance:clamp(1):float() / n_exact):log():div(math.log(max_distance / n_exact))
    :mul(n - n_exact):long():add(n_exact)
  return torch.where(distance:lt(n_exact), distance, far:clamp_max(n - 1))
end

-- Returns [H, T, S], where row t holds `of_distance` [H, T + S] from element T - 1 - t on. Rows
-- of T + S elements, read as rows of one element less, move by one element from row to row.
local function shifted_rows(of_distance, T, S)
  local H = of_distance:size(0)
  return of_distance:unsqueeze(1):expand(H, T, T + S):reshape(H, -1)
    :narrow(1, T - 1, T * (T + S - 1)):view(H, T, -1):narrow(2, 0, S)
end

local relative_bias = {}

local function two_sided(distance, n, max)
  local half = math.floor(n / 2)
  return buckets(distance:abs(), half, max) + distance:gt(0) * half
end

--- Returns the bias [1, H, T, T] of T tokens that see both sides. `look_up(buckets)` returns the
--- row [H] of each of the `n` buckets.
function relative_bias.of_both_sides(n, max_distance, length, device, look_up)
  local distance = torch.arange(1 - length, length + 1, { device = device })
  local bias = look_up(two_sided(distance, n, max_distance)):t()
  return shifted_rows(bias, length, length):unsqueeze(0):contiguous()
end

--- Of T5: returns function(params, i): the bias [1, H, T, S] of layer i. A decoder's masks the
--- future.
function relative_bias.of_t5(c, device, stack, past, length)
  local n, max = c.relative_attention_num_buckets, c.relative_attention_max_distance
  -- From the last query to the first key, to one more than from the first query to the last key.
  local distance = torch.arange(1 - past - length, length + 1, { device = device })
  local bucket = stack == "decoder" and buckets((-distance):clamp(0), n, max)
    or two_sided(distance, n, max)
  return function(params, i)
    local name = ("%s.block.%d.layer.0.SelfAttention.relative_attention_bias"):format(stack, i)
    -- One row for each distance: a lookup for each query and key has a slow backward on GPUs.
    local bias = blocks.embedding(params, name, bucket):t()
    if stack == "decoder" then bias = bias:masked_fill(distance:gt(0), -math.huge) end
    -- Contiguous: the fused kernels of GPUs refuse other biases.
    return shifted_rows(bias, length, past + length):unsqueeze(0):contiguous()
  end
end

return relative_bias
