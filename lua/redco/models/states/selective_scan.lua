--- The selective scan of Mamba (Gu and Dao, 2023): each channel has a state h [N], of which a token
--- with x, a step dt, b [N] and c [N] makes h' = exp(dt a) h + dt x b and y = h' c. Shapes: D
--- channels, n chunks of L tokens.
local blocks = require "redco.models.layers.blocks"
local chunks = require "redco.models.states.chunks"
local torch = require "redco.torch"

-- Runs h' = decays h + inputs along `dim`, from `state`, or nil for zeros. Returns the
-- states before each place, or after it, and the last one.
local function along(dim, inputs, decays, state, is_after)
  local states = {}
  inputs, decays = inputs:unbind(dim), decays:unbind(dim)
  for i, input in ipairs(inputs) do
    if not is_after then states[i] = state end
    state = state and torch.addcmul(input, state, decays[i]) or input
    if is_after then states[i] = state end
  end
  return torch.stack(states, dim), state
end

--- Returns y [B, T, D] and the state [B, D, N] after all tokens, in float32 at least. x, dt: [B, T,
--- D]; a: [D, N]; b, c: [B, T, N]; state: that before, or nil.
return function(x, dt, a, b, c, state)
  local dtype, length = blocks.wide_dtype(x), x:size(1)
  x, dt, a, b, c = x:to(dtype), dt:to(dtype), a:to(dtype), b:to(dtype), c:to(dtype)
  -- First all chunks advance together, token by token. Then the state passes from chunk to chunk.
  local size = math.ceil(math.sqrt(length))
  local n = math.ceil(length / size)
  local decay = chunks.split(dt, n, size):unsqueeze(-1) * a  -- [B, n, L, D, N]
  local inputs = chunks.split(dt * x, n, size):unsqueeze(-1)
    * chunks.split(b, n, size):unsqueeze(-2)
  c = chunks.split(c, n, size):unsqueeze(-2)
  local states, added = along(2, inputs, decay:exp(), nil, true)
  if n > 1 or state then
    local from_start = decay:cumsum(2):exp()
    local starts
    starts, state = along(1, added, from_start:select(2, size - 1),
      state or torch.zeros_like(added:select(1, 0)))
    states = torch.addcmul(states, from_start, starts:unsqueeze(2))
  else
    state = added:select(1, 0)
  end
  return chunks.join((states * c):sum { -1 }, length), state
end
