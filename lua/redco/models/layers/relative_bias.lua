--- Biases of attention by the distance of two tokens, as T5 has them.
local blocks = require "redco.models.layers.blocks"
local torch = require "redco.torch"

local bias = {}

-- Returns the bucket of each distance >= 0: half of the `n` buckets hold one distance each, the
-- others grow logarithmically up to `max_distance`.
local function buckets_of(distance, n, max_distance)
  local n_exact = math.floor(n / 2)
  -- In the same order of operations as transformers, so that bucket borders round alike.
  local far = (distance:clamp(1):float() / n_exact):log():div(math.log(max_distance / n_exact))
    :mul(n - n_exact):long():add(n_exact)
  return torch.where(distance:lt(n_exact), distance, far:clamp_max(n - 1))
end

--- Returns the bucket of each distance from a query to a key: half of the `n` buckets are of keys
--- that are not after it, half of those after it.
function bias.buckets(distance, n, max_distance)
  local half = math.floor(n / 2)
  return buckets_of(distance:abs(), half, max_distance) + distance:gt(0) * half
end

-- Returns [H, T, S], where row t holds `of_distance` [H, T + S] from element T - 1 - t on. Reads
-- rows of T + S elements as rows of one element less, so that each row moves by one element.
local function shifted_rows(of_distance, T, S)
  local H = of_distance:size(0)
  return of_distance:unsqueeze(1):expand(H, T, T + S):reshape(H, -1)
    :narrow(1, T - 1, T * (T + S - 1)):view(H, T, -1):narrow(2, 0, S)
end

--- Returns function(params, name): the bias [1, H, T, S] of `length` tokens after `past`, from the
--- embedding `name` of `n` buckets. If it `is_causal`, it masks the future.
function bias.new(n, max_distance, given)
  local past, length, is_causal = given.past or 0, given.length, given.is_causal
  -- The distance from the last query to the first key, up to that from the first query to the last
  -- key, plus 1.
  local distance = torch.arange(1 - past - length, length + 1, { device = given.device })
  local bucket = is_causal and buckets_of((-distance):clamp(0), n, max_distance)
    or bias.buckets(distance, n, max_distance)
  return function(params, name)
    -- One row for each distance: a lookup for each query and key has a slow backward on GPUs.
    local of_distance = blocks.embedding(params, name, bucket):t()
    if is_causal then of_distance = of_distance:masked_fill(distance:gt(0), -math.huge) end
    -- Contiguous: the fused kernels of GPUs refuse other biases.
    return shifted_rows(of_distance, length, past + length):unsqueeze(0):contiguous()
  end
end

return bias
