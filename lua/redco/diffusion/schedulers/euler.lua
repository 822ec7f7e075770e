--- Euler's method in sigma (arXiv 2206.00364, algorithm 2 without churn).
local sigma_timesteps = require "redco.diffusion.schedulers.sigma_timesteps"

return sigma_timesteps.class(function(self, output, _, sample)
  local sigma, next_sigma = self.sigmas[self.index], self.sigmas[self.index + 1]
  local x0, derivative = sigma_timesteps.derivative(self, output, sample, sigma)
  return sample + (next_sigma - sigma) * derivative, x0
end)
