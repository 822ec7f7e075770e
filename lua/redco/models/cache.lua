--- The cache of what a model keeps of the tokens that it has seen: keys and values, and states.
local registry = require "redco.registry"
local torch = require "redco.torch"

local Cache = { __name = "Cache" }
Cache.__index = Cache
registry.define("Cache", [[
Cache {length}
What a model keeps of the tokens that it has seen: keys, values and states of its layers.
  length: the number of these tokens]], Cache)

-- Returns `t` [B, H, n, D] with room for `capacity` tokens. Padding keeps its placement.
local function with_room(t, capacity)
  return torch.constant_pad_nd(t, { 0, 0, 0, capacity - t:size(2) }, 0)
end

--- From now on a call of the model appends one token to each row, and computes with the keys and
--- values of `capacity` tokens, of which masks hide those to come. No shape and no number of the
--- host differs between two calls, so that one can be captured and replayed: where the token goes
--- is in the tensor `place` [1].
function Cache:fix(device)
  self.place = torch.full({ 1 }, self.length, { dtype = "int64", device = device })
  self.capacity = self:n_places() or self.capacity
end

--- Returns how many tokens there is memory for, or nil if the layers have only states.
function Cache:n_places()
  local held = self.layers[1]
  return held and held[1]:size(2)
end

--- Returns how many columns masks have before the new tokens.
function Cache:n_columns() return self.place and self.capacity - 1 or self.length end

--- Counts n tokens, which every layer has appended.
function Cache:advance(n)
  if self.place then self.place:add_(n) else self.length = self.length + n end
end

-- Writes new tokens to a tensor. Of split columns each process writes its own.
local function write(held, past, new)
  if not held:is_sharded() then return held:narrow(2, past, new:size(2)):copy_(new) end
  held:index_copy_(2, torch.arange(past, past + new:size(2), { device = held.device }), new)
end

--- Appends the keys and values [B, H, T, D] of new tokens in a layer. Returns those of all tokens.
function Cache:extend(layer, k, v)
  local held, past = self.layers[layer], self.length
  if self.place then
    held[1]:index_copy_(2, self.place, k)
    held[2]:index_copy_(2, self.place, v)
    return held[1], held[2]
  end
  local length = past + k:size(2)
  if not held then
    local capacity = math.max(length, self.capacity)
    held = { with_room(k, capacity), with_room(v, capacity) }
    self:add(self.layers, layer, held)
  elseif held[1]:size(2) < length then
    for i = 1, 2 do held[i] = with_room(held[i], 2 * length) end
  end
  if past > 0 then
    write(held[1], past, k)
    write(held[2], past, v)
  end
  return held[1]:narrow(2, 0, length), held[2]:narrow(2, 0, length)
end

--- Returns entries that do not grow, such as the keys and values of an encoder. The first call
--- computes them with `make`.
function Cache:once(layer, make)
  if not self.fixed[layer] then self:add(self.fixed, layer, { make() }) end
  return unpack(self.fixed[layer])
end

--- Returns the state of a layer, tensors [B, ...] of a fixed size, or nothing before the first
--- tokens.
function Cache:state(layer)
  local held = self.states[layer]
  if held then return unpack(held) end
end

--- Replaces the state of a layer.
function Cache:keep(layer, ...)
  local held = self.states[layer]
  if not held then
    held = {}
    for i, t in ipairs { ... } do held[i] = t:detach():clone() end
    return self:add(self.states, layer, held)
  end
  -- Copies in place: the state stays on the processes that held it first.
  for i, t in ipairs { ... } do held[i]:copy_(t:detach()) end
end

--- Keeps only the first `length` tokens. Returns whether it can: states are those after the last.
function Cache:shorten(length)
  if length < self.length and #self.states > 0 then return false end
  self.length = math.min(length, self.length)
  return true
end

-- Lists all entries in the order of their insertion, which is the same on all processes.
function Cache:add(group, layer, held)
  group[layer] = held
  group[#group + 1] = held
end

local function map(self, group, f)
  for _, held in ipairs(group) do
    for i = 1, #held do
      local new = f(held[i])
      -- A captured call reads the old tensors by their addresses.
      held[i] = self.place and held[i]:copy_(new) or new
    end
  end
end

--- Replaces every entry by f of it, a function of tensors [B, ...].
function Cache:map(f)
  for _, group in ipairs { self.layers, self.states, self.fixed } do map(self, group, f) end
end

--- The same with the keys and values of tokens alone, [B, H, n, D].
function Cache:map_columns(f) map(self, self.layers, f) end

-- Row i of each example becomes a copy of its row parents[i]. A process holds whole examples, so
-- sharded rows stay on their process.
local function reordered(t, parents)
  local batch, beams = parents:size(0), parents:size(1)
  if not t:is_sharded() then
    local first = (torch.arange(batch, { device = parents.device }) * beams):unsqueeze(1)
    return t:index_select(0, (parents + first):view(-1):to(t.device))
  end
  local shape, ones = { batch, beams, unpack(t.shape, 2) }, { batch, beams }
  for d = 3, #shape do ones[d] = 1 end
  local index = parents:to(t.device):view(ones):expand(shape)
  return t:view(shape):gather(1, index):view(t.shape)
end

--- Reorders beams: row i of an example continues row parents[i]; parents is [batch, beams]. Entries
--- that do not grow stay, because the beams of one example share them.
function Cache:reorder(parents)
  for _, group in ipairs { self.layers, self.states } do
    map(self, group, function(t) return reordered(t, parents) end)
  end
end

return registry.define("redco.models.new_cache", [[
new_cache(capacity = 0) -> Cache
Returns an empty cache for `model(params, inputs, {cache = cache})`. With a cache, inputs are only
the new tokens; each call appends them to the `cache.length` tokens seen before. `capacity` is a
number of tokens to reserve memory for. A cache is not differentiable.]], function(capacity)
  return setmetatable({
    layers = {}, states = {}, fixed = {}, length = 0, capacity = capacity or 0,
  }, Cache)
end)
