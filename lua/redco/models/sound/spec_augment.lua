--- SpecAugment (Park et al., 2019), arXiv 1904.08779, as transformers' models of sound have it: in
--- training, random spans of frames become a learned vector, and random spans of channels zeros.
--- Each example draws its own, so that they are the same on every layout.
local torch = require "redco.torch"

local spec_augment = {}

-- Returns a mask [rows, length] of spans. `lengths` [rows] are those of the rows without padding;
-- `noise` is a tensor [rows, length + 1] of random numbers in [0, 1).
local function spans(noise, lengths, p, span, least)
  local length = noise:size(1) - 1
  if span > length then return nil end
  local wanted = (lengths * (p / span) + noise:select(1, length)):floor():clamp_min(least)
  local n = torch.minimum(wanted, (lengths - (span - 1)):clamp_min(0))
  n = torch.minimum(n, torch.full_like(n, math.floor(length / span))):unsqueeze(1)
  local places = torch.arange(length, { device = noise.device, dtype = noise.dtype })
  local is_start = places:unsqueeze(0):le((lengths - span):unsqueeze(1))
  local scores = noise:narrow(1, 0, length):masked_fill(is_start:logical_not(), -1)
  local ranks = scores:argsort(1, true):argsort(1)
  local starts = ranks:lt(n):logical_and(is_start):to(noise.dtype)
  local ended = torch.constant_pad_nd(starts, { span, 0 }):narrow(1, 0, length)
  return (starts - ended):cumsum(1):gt(0)
end

local function noise_of(x, length, rng)
  local like = x:detach():select(2, 0):narrow(1, 0, 1):float():expand { x:size(0), length + 1 }
  return torch.empty_like(like:contiguous()):uniform_(0, 1, { generator = rng })
end

--- Masks frames x [B, T, size] in training. `mask` [B, T] is true for sound, or nil; `vector`
--- [size] replaces frames.
function spec_augment.apply(c, x, mask, vector, rng)
  local batch, length, size = unpack(x.shape)
  if c.mask_time_prob > 0 then
    local noise = noise_of(x, length, rng)
    local lengths = mask and mask:to(noise.dtype):sum(1)
      or torch.full({ 1 }, length, { dtype = noise.dtype, device = x.device }):expand { batch }
    local is_masked = spans(noise, lengths, c.mask_time_prob, c.mask_time_length,
      c.mask_time_min_masks)
    if is_masked then x = torch.where(is_masked:unsqueeze(-1), vector:to(x.dtype), x) end
  end
  if c.mask_feature_prob > 0 then
    local noise = noise_of(x, size, rng)
    local lengths = torch.full({ 1 }, size, { dtype = noise.dtype, device = x.device })
      :expand { batch }
    local is_masked = spans(noise, lengths, c.mask_feature_prob, c.mask_feature_length,
      c.mask_feature_min_masks)
    if is_masked then x = x:masked_fill(is_masked:unsqueeze(1), 0) end
  end
  return x
end

return spec_augment
