--- One vector for each text, from the hidden states [B, T, size] of its tokens. Masks are [B, T], 1
--- for tokens and 0 for padding, which may be on either side; without one all are tokens.
local blocks = require "redco.models.blocks"
local torch = require "redco.torch"

local pooling = {}

-- Returns the hidden states at the places [B].
local function at(x, places)
  return x:gather(1, places:view { -1, 1, 1 }:expand { -1, 1, x:size(2) }):squeeze(1)
end

--- The mean over tokens. A text without any has 0.
function pooling.mean(x, mask)
  if not mask then return x:mean { 1 } end
  -- A sum of many tokens needs more digits than half precision has.
  mask = mask:to(blocks.wide_dtype(x))
  return ((x * mask:unsqueeze(-1)):sum { 1 } / mask:sum({ 1 }, true):clamp(1)):to(x.dtype)
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
