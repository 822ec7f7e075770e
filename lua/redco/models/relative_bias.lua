--- T5's biases of attention by the distance of two tokens.
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

--- Returns function(params, i): the bias [1, H, T, S] of layer i. A decoder's masks the future.
return function(c, device, stack, past, length)
  local key = torch.arange(past + length, { device = device })
  local offset = key:unsqueeze(0) - key:narrow(0, past, length):unsqueeze(1)
  local n, max = c.relative_attention_num_buckets, c.relative_attention_max_distance
  local bucket
  if stack == "decoder" then
    bucket = buckets((-offset):clamp(0), n, max)
  else
    local half = math.floor(n / 2)
    bucket = buckets(offset:abs(), half, max) + offset:gt(0) * half
  end
  return function(params, i)
    local name = ("%s.block.%d.layer.0.SelfAttention.relative_attention_bias"):format(stack, i)
    -- In the order of the scores: the fused kernels of GPUs refuse other biases.
    local bias = blocks.embedding(params, name, bucket):permute({ 2, 0, 1 }):unsqueeze(0)
      :contiguous()
    return stack == "decoder" and bias:masked_fill(offset:gt(0), -math.huge) or bias
  end
end
