--- Euler's method with new noise in every step.
local fail = require "redco.fail"
local sigma_timesteps = require "redco.diffusion.schedulers.sigma_timesteps"

local ancestral = sigma_timesteps.class(function(self, output, _, sample, o)
  local from, to = self.sigmas[self.index], self.sigmas[self.index + 1]
  local x0, derivative = sigma_timesteps.derivative(self, output, sample, from)
  local up = math.sqrt(to ^ 2 * (from ^ 2 - to ^ 2) / from ^ 2)
  local down = math.sqrt(to ^ 2 - up ^ 2)
  return sample + (down - from) * derivative + up * self:noise_like(output, o), x0
end)

function ancestral.check(self)
  if self.config.prediction_type == "sample" then
    fail("%s: prediction_type: 'sample' is not supported by this class", self.name)
  end
end

return ancestral
