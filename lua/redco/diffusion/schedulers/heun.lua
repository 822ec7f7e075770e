--- Heun's method in sigma (arXiv 2206.00364): every step but the last takes two calls of the model.
local sigma_timesteps = require "redco.diffusion.schedulers.sigma_timesteps"

local heun = sigma_timesteps.class(function(self, output, _, sample)
  local first = self.first
  if not first then
    local sigma, next_sigma = self.sigmas[self.index], self.sigmas[self.index + 1]
    local x0, derivative = sigma_timesteps.derivative(self, output, sample, sigma)
    self.first = { sample = sample, derivative = derivative, change = next_sigma - sigma }
    return sample + (next_sigma - sigma) * derivative, x0
  end
  local x0, derivative = sigma_timesteps.derivative(self, output, sample, self.sigmas[self.index])
  self.first = nil
  return first.sample + (first.change / 2) * (first.derivative + derivative), x0
end)

heun.schedules.exp = true
heun.calls_per_step = 2

local function doubled(list, last)
  local result = {}
  for i = 1, #list do
    result[#result + 1] = list[i]
    if i > 1 and i <= last then result[#result + 1] = list[i] end
  end
  return result
end

function heun.set_timesteps(self, n)
  sigma_timesteps.set(self, n)
  self.sigmas, self.timesteps, self.first = doubled(self.sigmas, n), doubled(self.timesteps, n), nil
end

return heun
