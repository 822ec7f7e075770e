--- Keys and values of the tokens that a model has seen, so that each is computed once.
local registry = require "redco.registry"
local torch = require "redco.torch"

local Cache = { __name = "Cache" }
Cache.__index = Cache
registry.define("Cache", [[
Cache {length}
Keys and values of the tokens that a model has seen.
  length: the tokens seen]], Cache)

-- `t` [B, H, n, D] with room for `capacity` tokens. Padding keeps how it lies over the processes.
local function with_room(t, capacity)
  return torch.constant_pad_nd(t, { 0, 0, 0, capacity - t:size(2) }, 0)
end

--- Adds the new tokens' keys and values [B, H, T, D] of a layer; returns those of all tokens.
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

--- What does not grow, as the keys and values of an encoder: made at the first call.
function Cache:once(layer, make)
  if not self.fixed[layer] then self:add(self.fixed, layer, { make() }) end
  return unpack(self.fixed[layer])
end

-- All that is held, in the order in which it came: processes must walk it alike.
function Cache:add(group, layer, held)
  group[layer] = held
  group[#group + 1] = held
end

--- Changes all that is held by a function of tensors [B, ...].
function Cache:map(f)
  for _, group in ipairs { self.layers, self.fixed } do
    for _, held in ipairs(group) do
      for i = 1, #held do held[i] = f(held[i]) end
    end
  end
end

-- Row i of each example becomes what its row parents[i] was. A process has whole examples: sharded
-- rows stay where they are.
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

--- Beams: row i of an example goes on from what its row parents[i] saw; parents [batch, beams].
--- What does not grow stays, for beams of one example share it.
function Cache:reorder(parents)
  for _, held in ipairs(self.layers) do
    for i = 1, 2 do held[i] = reordered(held[i], parents) end
  end
end

return registry.define("redco.models.new_cache", [[
new_cache(capacity = 0) -> Cache
An empty cache for `model(params, inputs, {cache = cache})`: each call adds the tokens of its inputs,
which are then only the new ones, to those that `cache.length` counts. `capacity`: tokens to make
room for at once. Not differentiable.]], function(capacity)
  return setmetatable({ layers = {}, fixed = {}, length = 0, capacity = capacity or 0 }, Cache)
end)
