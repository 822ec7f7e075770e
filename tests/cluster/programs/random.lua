--- A source of random choices: the same on every process and machine for one seed.
local bit = require "bit"

local Random = {}
Random.__index = Random

local function advance(state) return state * 6364136223846793005ULL + 1442695040888963407ULL end

function Random.new(seed)
  local state = advance(advance(seed * 1ULL) + 0x9E3779B97F4A7C15ULL)
  return setmetatable({ state = state }, Random)
end

--- An integer from 0 to n - 1.
function Random:below(n)
  self.state = advance(self.state)
  return tonumber(bit.rshift(self.state, 33)) % n
end

--- An integer from low to high.
function Random:between(low, high) return low + self:below(high - low + 1) end

--- True with the probability `p`.
function Random:chance(p) return self:below(10000) < p * 10000 end

function Random:choice(list) return list[1 + self:below(#list)] end

--- An entry by its weight; `total` is the sum of the weights.
function Random:weighted(entries, weights, total)
  local at = self:below(1000003) / 1000003 * total
  for i, entry in ipairs(entries) do
    at = at - weights[i]
    if at < 0 then return entry end
  end
  return entries[#entries]
end

return Random
