--- Biases of attention by distance instead of positions (Press et al., 2021): a score grows with
--- the key's place, in each head at another rate.
local blocks = require "redco.models.layers.blocks"
local torch = require "redco.torch"

local alibi = {}

-- Returns the rate of each head: a geometric sequence if their number is a power of two, else that
-- of the next smaller power and every other one of the next larger.
local function rates(n_heads)
  local list, n = {}, 1
  while 2 * n <= n_heads do n = 2 * n end
  for i = 1, n do list[i] = 2 ^ (-8 * i / n) end
  for i = 1, n_heads - n do list[n + i] = 2 ^ (-4 * (2 * i - 1) / n) end
  return list
end

--- Returns function(inputs, o, x) -> [B or 1, H, 1, S], to be added to scores for the new tokens x
--- [B, T, ...]. Padding does not count as a place. `dtype`, or nil, is that of the products.
function alibi.new(n_heads, dtype)
  local on_devices = {}
  return function(inputs, o, x)
    local mask, length = inputs.attention_mask, blocks.n_keys(o, x)
    local places = mask and (mask:cumsum(1) - 1) * mask
      or torch.arange(length, { device = x.device }):unsqueeze(0)
    local own = on_devices[x.device]
    if not own then
      own = torch.tensor(rates(n_heads), { dtype = "float32", device = x.device })
        :view { 1, n_heads, 1, 1 }
      if dtype then own = own:to(dtype) end
      on_devices[x.device] = own
    end
    return (own * places:view { places:size(0), 1, 1, length }):to(x.dtype)
  end
end

--- Adds a bias to a mask of masks.causal.
function alibi.masked(mask, bias)
  if not mask.mask then return { mask = bias, causal = mask.causal } end
  return { mask = mask.mask + bias }
end

return alibi
