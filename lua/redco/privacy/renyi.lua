--- Epsilon by Renyi differential privacy.
local mechanism = require "redco.privacy.mechanism"
local torch = require "redco.torch"

local orders = {}
for i = 1, 99 do orders[i] = 1 + i / 10 end
for order = 12, 63 do orders[#orders + 1] = order end

local curves = {}  -- by noise multiplier and sampling rate

--- Returns the divergence of one step at each order.
local function curve(phase)
  local sigma, q = phase.noise_multiplier, phase.sample_rate
  local key = ("%.17g %.17g"):format(sigma, q)
  if not curves[key] then
    local loss, log_weight = mechanism.integral(sigma, q, orders[#orders])
    local divergences = {}
    for i, order in ipairs(orders) do
      divergences[i] = torch.logsumexp(log_weight + loss * order, { 0 }):item() / (order - 1)
    end
    curves = { [key] = divergences }  -- training asks for one again and again
  end
  return curves[key]
end

--- Returns the lowest epsilon over the orders (Balle et al., arXiv 1905.09982, theorem 21).
return function(phases, delta)
  local divergences, epsilon = {}, math.huge
  for _, phase in ipairs(phases) do
    for i, divergence in ipairs(curve(phase)) do
      divergences[i] = (divergences[i] or 0) + phase.steps * divergence
    end
  end
  for i, a in ipairs(orders) do
    epsilon = math.min(epsilon,
      divergences[i] - (math.log(delta) + math.log(a)) / (a - 1) + math.log((a - 1) / a))
  end
  return math.max(0, epsilon)
end
