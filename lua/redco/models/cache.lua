--- Keys and values of the tokens that a model has seen, so that each is computed once.
local registry = require "redco.registry"
local torch = require "redco.torch"

local Cache = {}
Cache.__index = Cache

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
    self.layers[layer] = held
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
  if not self.fixed[layer] then self.fixed[layer] = { make() } end
  return unpack(self.fixed[layer])
end

--- Changes all that is held by a function of tensors [B, ...].
function Cache:map(f)
  for _, group in ipairs { self.layers, self.fixed } do
    for _, held in pairs(group) do
      for i = 1, #held do held[i] = f(held[i]) end
    end
  end
end

--- Beams: row i goes on from what row index[i] saw. What does not grow stays, for beams of one
--- example share it.
function Cache:reorder(index)
  for _, held in pairs(self.layers) do
    for i = 1, 2 do
      local seen = held[i]:narrow(2, 0, self.length)
      seen:copy_(seen:index_select(0, index))
    end
  end
end

return registry.define("redco.models.new_cache", [[
new_cache(capacity = 0) -> Cache
An empty cache for `model(params, inputs, {cache = cache})`: each call adds the tokens of its inputs,
which are then only the new ones, to those that `cache.length` counts. `capacity`: tokens to make
room for at once. Not differentiable.]], function(capacity)
  return setmetatable({ layers = {}, fixed = {}, length = 0, capacity = capacity or 0 }, Cache)
end)
