--- A linear multistep method of order 4 in sigma.
local sigma_timesteps = require "redco.diffusion.schedulers.sigma_timesteps"

local order = 4

-- Gauss-Legendre nodes and weights on [-1, 1]: exact for the polynomials here.
local nodes = { { -0.7745966692414834, 5 / 9 }, { 0, 8 / 9 }, { 0.7745966692414834, 5 / 9 } }

-- The integral over one step of the Lagrange polynomial that is 1 at the sigma `k` steps ago.
local function weight(sigmas, index, k, n)
  local a, b = sigmas[index], sigmas[index + 1]
  local sum = 0
  for _, node in ipairs(nodes) do
    local tau, product = (a + b) / 2 + (b - a) / 2 * node[1], 1
    for j = 0, n - 1 do
      if j ~= k then
        product = product * (tau - sigmas[index - j]) / (sigmas[index - k] - sigmas[index - j])
      end
    end
    sum = sum + node[2] * product
  end
  return sum * (b - a) / 2
end

local lms = sigma_timesteps.class(function(self, output, _, sample)
  local x0, derivative = sigma_timesteps.derivative(self, output, sample, self.sigmas[self.index])
  table.insert(self.derivatives, 1, derivative)
  self.derivatives[order + 1] = nil
  local result, n = sample, #self.derivatives
  for k = 0, n - 1 do
    result = result + weight(self.sigmas, self.index, k, n) * self.derivatives[k + 1]
  end
  return result, x0
end)

function lms.set_timesteps(self, n)
  sigma_timesteps.set(self, n)
  self.derivatives = {}
end

return lms
