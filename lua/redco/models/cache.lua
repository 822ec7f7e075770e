--- The cache of keys and values of the tokens that a model has seen.
local registry = require "redco.registry"
local torch = require "redco.torch"

local Cache = { __name = "Cache" }
Cache.__index = Cache
registry.define("Cache", [[
Cache {length}
The keys and values of the tokens that a model has seen.
  length: the number of these tokens]], Cache)

-- Returns `t` [B, H, n, D] with room for `capacity` tokens. Padding keeps its placement.
local function with_room(t, capacity)
  return torch.constant_pad_nd(t, { 0, 0, 0, capacity - t:size(2) }, 0)
end

--- Appends the keys and values [B, H, T, D] of new tokens in a layer. Returns those of all tokens.
function Cache:extend(layer, k, v)
  local held, past = self.layers[layer], self.length
  local length = past + k:size(2)
  if not held then
    local capacity = math.max(length, self.capacity)
    held = { with_room(k, capacity), with_room(v, capacity) }
    self:add(self.layers, layer, held)
  elseif held[1]:size(2) < length then
    for i = 1, 2 do held[i] = with_room(held[i], 2 * length) end
  end
  if past > 0 then
    held[1]:narrow(2, past, length - past):copy_(k)
    held[2]:narrow(2, past, length - past):copy_(v)
  end
  return held[1]:narrow(2, 0, length), held[2]:narrow(2, 0, length)
end

--- Returns entries that do not grow, such as the keys and values of an encoder. The first call
--- computes them with `make`.
function Cache:once(layer, make)
  if not self.fixed[layer] then self:add(self.fixed, layer, { make() }) end
  return unpack(self.fixed[layer])
end

-- Lists all entries in the order of their insertion, which is the same on all processes.
function Cache:add(group, layer, held)
  group[layer] = held
  group[#group + 1] = held
end

--- Replaces every entry by f of it, a function of tensors [B, ...].
function Cache:map(f)
  for _, group in ipairs { self.layers, self.fixed } do
    for _, held in ipairs(group) do
      for i = 1, #held do held[i] = f(held[i]) end
    end
  end
end

-- Row i of each example becomes a copy of its row parents[i]. A process holds whole examples, so
-- sharded rows stay on their process.
local function reordered(t, parents)
  local batch, beams = parents:size(0), parents:size(1)
  if not t:is_sharded() then
    local first = (torch.arange(batch) * beams):unsqueeze(1)
    return t:index_select(0, (parents + first):view(-1):to(t.device))
  end
  local _, heads, length, size = unpack(t.shape)
  local index = parents:to(t.device):view { batch, beams, 1, 1, 1 }
    :expand { batch, beams, heads, length, size }
  return t:view { batch, beams, heads, length, size }:gather(1, index):view(t.shape)
end

--- Reorders beams: row i of an example continues row parents[i]; parents is [batch, beams]. Entries
--- that do not grow stay, because the beams of one example share them.
function Cache:reorder(parents)
  for _, held in ipairs(self.layers) do
    for i = 1, 2 do held[i] = reordered(held[i], parents) end
  end
end

return registry.define("redco.models.new_cache", [[
new_cache(capacity = 0) -> Cache
Returns an empty cache for `model(params, inputs, {cache = cache})`. With a cache, inputs are only
the new tokens; each call appends them to the `cache.length` tokens seen before. `capacity` is a
number of tokens to reserve memory for. A cache is not differentiable.]], function(capacity)
  return setmetatable({ layers = {}, fixed = {}, length = 0, capacity = capacity or 0 }, Cache)
end)
