--- The gated delta rule (Yang, Kautz and Hatamizadeh, 2024): each head has a state S [K, V], which
--- a token with key k [K], value v [V], decay and rate beta makes S' = decay S + beta k (v - decay
--- S^T k)^T. A query q [K] reads S'^T q. The R heads of a group share k and q. Shapes: G groups, n
--- chunks of L tokens.
local blocks = require "redco.models.layers.blocks"
local chunks = require "redco.models.states.chunks"
local torch = require "redco.torch"

-- One token: q, k [B, G, K]; v [B, G, R, V]; decay (its logarithm), beta [B, G, R].
local function step(q, k, v, decay, beta, state)
  q, k = q:unsqueeze(2):unsqueeze(-1), k:unsqueeze(2):unsqueeze(-1)
  beta = beta:unsqueeze(-1)
  local new
  if state then
    state = state * decay:exp():unsqueeze(-1):unsqueeze(-1)
    new = torch.addcmul(state, k, ((v - (state * k):sum { -2 }) * beta):unsqueeze(-2))
  else
    new = k * (v * beta):unsqueeze(-2)
  end
  return (new * q):sum { -2 }, new
end

--- Returns y [B, T, G, R, V] and the state [B, G, R, K, V] after all tokens, in float32 at least.
--- q, k: [B, T, G, K]; v: [B, T, G, R, V]; decay (its logarithm), beta: [B, T, G, R]; state: that
--- before, or nil.
return function(q, k, v, decay, beta, state)
  local dtype = blocks.wide_dtype(v)
  q, k, v = q:to(dtype), k:to(dtype), v:to(dtype)
  decay, beta = decay:to(dtype), beta:to(dtype)
  local length = q:size(1)
  if length == 1 then
    local y, new = step(q:select(1, 0), k:select(1, 0), v:select(1, 0), decay:select(1, 0),
      beta:select(1, 0), state)
    return y:unsqueeze(1), new
  end

  local n, size = chunks.sizes(length)
  q = chunks.split(q, n, size):permute { 0, 3, 1, 2, 4 }:unsqueeze(2)  -- [B, G, 1, n, L, K]
  k = chunks.split(k, n, size):permute { 0, 3, 1, 2, 4 }:unsqueeze(2)
  v = chunks.split(v, n, size):permute { 0, 3, 4, 1, 2, 5 }  -- [B, G, R, n, L, V]
  beta = chunks.split(beta, n, size):permute { 0, 3, 4, 1, 2 }:unsqueeze(-1)
  local sums = chunks.split(decay, n, size):permute { 0, 3, 4, 1, 2 }:cumsum(-1)  -- [B, G, R, n, L]
  local decays, from_start = chunks.decays(sums), sums:exp():unsqueeze(-1)

  -- In a chunk the tokens read each other: values = (I + M)^-1 (beta v - beta from_start k S),
  -- where M is beta k k^T with decays, below the diagonal.
  local turned = k:transpose(-1, -2)
  local inverse = chunks.inverse((k:matmul(turned) * decays * beta):tril(-1))
  local values = inverse:matmul(v * beta)
  local reads = inverse:matmul(k * (beta * from_start))
  local last = sums:narrow(-1, size - 1, 1)
  local writes = (k * (last - sums):exp():unsqueeze(-1)):transpose(-1, -2)
  local kept = last:exp():unsqueeze(-1)

  local starts, new_values = {}, {}
  values, reads, writes, kept = values:unbind(3), reads:unbind(3), writes:unbind(3), kept:unbind(3)
  for i = 1, n do
    starts[i] = state or torch.zeros_like(writes[1]:matmul(values[1]))
    new_values[i] = values[i] - reads[i]:matmul(starts[i])
    state = torch.addcmul(writes[i]:matmul(new_values[i]), starts[i], kept[i])
  end
  local y = (q:matmul(turned) * decays):matmul(torch.stack(new_values, 3))
    + (q * from_start):matmul(torch.stack(starts, 3))
  return chunks.join(y:permute { 0, 3, 4, 1, 2, 5 }, length), state
end
