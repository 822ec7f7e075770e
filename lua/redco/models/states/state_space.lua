--- The scan of Mamba-2 (Dao and Gu, 2024): each head has a state h [P, N], of which a token with x
--- [P], a step dt, b [N] and c [N] makes h' = exp(dt a) h + dt x b^T and y = h' c. The R heads of a
--- group share b and c. Shapes: G groups, n chunks of L tokens.
local blocks = require "redco.models.layers.blocks"
local chunks = require "redco.models.states.chunks"
local torch = require "redco.torch"

-- One token: x [B, G, R, P], decay [B, G, R], b and c [B, G, N]. Returns y [B, G, R, P].
local function step(x, decay, b, c, state)
  local function of_heads(t) return t:unsqueeze(2):unsqueeze(3) end
  local new = x:unsqueeze(-1) * of_heads(b)
  if state then new = torch.addcmul(new, state, decay:exp():unsqueeze(-1):unsqueeze(-1)) end
  return (new * of_heads(c)):sum { -1 }, new
end

-- Returns the states [B, G, n, R, P, N] before the chunks, and the last one.
local function passed(added, decays, state)
  local starts = {}
  added, decays = added:unbind(2), decays:unsqueeze(-1):unsqueeze(-1):unbind(3)
  state = state or torch.zeros_like(added[1])
  for i, own in ipairs(added) do
    starts[i] = state
    state = torch.addcmul(own, state, decays[i])
  end
  return torch.stack(starts, 2), state
end

--- Returns y [B, T, G, R, P] and the state [B, G, R, P, N] after all tokens, in float32 at least.
--- x: [B, T, G, R, P]; dt: [B, T, G, R]; a: [G, R]; b, c: [B, T, G, N]; state: that before, or nil.
return function(x, dt, a, b, c, state)
  local dtype = blocks.wide_dtype(x)
  dt, a, b, c = dt:to(dtype), a:to(dtype), b:to(dtype), c:to(dtype)
  x = x:to(dtype) * dt:unsqueeze(-1)
  local length, decay = x:size(1), dt * a
  if length == 1 then
    local y, new = step(x:select(1, 0), decay:select(1, 0), b:select(1, 0), c:select(1, 0), state)
    return y:unsqueeze(1), new
  end

  local n, size = chunks.sizes(length)
  local n_groups, n_heads, head_dim, n_states = x:size(2), x:size(3), x:size(4), b:size(3)
  x = chunks.split(x, n, size):permute { 0, 3, 4, 1, 2, 5 }  -- [B, G, R, n, L, P]
  b = chunks.split(b, n, size):permute { 0, 3, 1, 2, 4 }  -- [B, G, n, L, N]
  c = chunks.split(c, n, size):permute { 0, 3, 1, 2, 4 }
  local sums = chunks.split(decay, n, size):permute { 0, 3, 4, 1, 2 }:cumsum(-1)  -- [B, G, R, n, L]

  -- For each token, the sum over the tokens of its chunk.
  local scores = c:matmul(b:transpose(-1, -2)):unsqueeze(2)
  local y = (scores * chunks.decays(sums)):matmul(x):permute { 0, 3, 4, 1, 2, 5 }

  -- The terms that chunks add to the state, and the part of each token that comes from the state
  -- before its chunk.
  local last = sums:narrow(-1, size - 1, 1)
  local kept = (x * (last - sums):exp():unsqueeze(-1)):permute { 0, 1, 3, 2, 5, 4 }
  local added = kept:reshape { -1, n_groups, n, n_heads * head_dim, size }:matmul(b)
    :view { -1, n_groups, n, n_heads, head_dim, n_states }
  if n == 1 and not state then return chunks.join(y, length), added:select(2, 0) end
  local starts, new = passed(added, last:squeeze(-1):exp(), state)
  local read = c:matmul(starts:flatten(3, 4):transpose(-1, -2))
    :view { -1, n_groups, n, size, n_heads, head_dim }:permute { 0, 2, 3, 1, 4, 5 }
  y = torch.addcmul(y, read, sums:exp():permute { 0, 3, 4, 1, 2 }:unsqueeze(-1))
  return chunks.join(y, length), new
end
