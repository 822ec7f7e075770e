--- One vector for each text, from the hidden states [B, T, size] of its tokens. Masks are [B, T], 1
--- for tokens and 0 for padding, which may be on either side; without one all are tokens.
local blocks = require "redco.models.layers.blocks"
local torch = require "redco.torch"

local pooling = {}

-- Returns the hidden states at the places [B].
local function at(x, places)
  return x:gather(1, places:view { -1, 1, 1 }:expand { -1, 1, x:size(2) }):squeeze(1)
end

-- The sum of the tokens, times weights [B, T], over divisor(sum of the weights).
local function weighted(x, weights, divisor)
  -- A sum of many tokens needs more digits than half precision has.
  weights = weights:to(blocks.wide_dtype(x))
  local total = weights:sum({ 1 }, true):clamp(1)
  return ((x * weights:unsqueeze(-1)):sum { 1 } / divisor(total)):to(x.dtype)
end

local function itself(total) return total end

local function mask_of(x, mask)
  return mask or torch.ones({ x:size(0), x:size(1) }, { device = x.device })
end

--- The mean over tokens. A text without any has 0.
function pooling.mean(x, mask)
  if not mask then return x:mean { 1 } end
  return weighted(x, mask, itself)
end

--- The sum over tokens, by the root of their number.
function pooling.mean_sqrt_len_tokens(x, mask)
  return weighted(x, mask_of(x, mask), torch.sqrt)
end

--- The mean over tokens, each of which counts as often as its place says, from 1 for the first.
function pooling.weightedmean(x, mask)
  mask = mask_of(x, mask)
  local places = torch.arange(x:size(1), { device = x.device })
  local first = places:masked_fill(mask:eq(0), x:size(1) - 1):amin({ 1 }, true)
  return weighted(x, mask * (places - first + 1), itself)
end

--- The largest of each number over tokens. A text without any has -infinity.
function pooling.max(x, mask)
  if mask then x = x:masked_fill(mask:eq(0):unsqueeze(-1), -math.huge) end
  return x:amax { 1 }
end

--- The first token that is no padding.
function pooling.cls(x, mask)
  if not mask then return x:select(1, 0) end
  local places = torch.arange(x:size(1), { device = x.device })
  return at(x, places:masked_fill(mask:eq(0), x:size(1) - 1):amin { 1 })
end

--- The last token that is no padding.
function pooling.last(x, mask)
  if not mask then return x:select(1, x:size(1) - 1) end
  local places = torch.arange(x:size(1), { device = x.device })
  return at(x, places:masked_fill(mask:eq(0), 0):amax { 1 })
end

return pooling
