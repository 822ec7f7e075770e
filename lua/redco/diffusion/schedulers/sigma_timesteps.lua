--- Timesteps and sigmas of the schedulers of arXiv 2206.00364, whose sample is x0 + sigma * noise:
--- Euler, Heun and LMS.
local predictions = require "redco.diffusion.schedulers.predictions"
local tables = require "redco.diffusion.schedulers.tables"

local sigma_timesteps = {}

--- Sets self.timesteps and self.sigmas, which has one more: the sigma after the last step.
function sigma_timesteps.set(self, n)
  local c, training = self.config, self.training_sigmas
  local float32 = tables.float32
  local timesteps = tables.map(tables.spaced(self.name, c, n),
    c.timestep_spacing == "linspace" and float32 or tables.round)
  local sigmas
  if c.interpolation_type == "log_linear" then
    sigmas = tables.map(tables.linspace(math.log(training[#training]), math.log(training[1]),
      n + 1), math.exp)
  else
    sigmas = tables.map(timesteps, function(t) return tables.interpolate(training, t) end)
  end
  local respaced = tables.respaced(self.name, c, sigmas[1], sigmas[#sigmas], n)
  if respaced then
    sigmas = respaced
    timesteps = tables.map(sigmas, function(s) return tables.timestep_of(s, training) end)
  end
  sigmas[#sigmas + 1] = c.final_sigmas_type == "sigma_min" and training[1] or 0
  self.sigmas = tables.map(sigmas, float32)
  if c.timestep_type == "continuous" and c.prediction_type == "v_prediction" then
    for i = 1, #sigmas - 1 do timesteps[i] = math.log(self.sigmas[i]) / 4 end
  end
  self.timesteps = tables.map(timesteps, float32)
end

--- Returns the standard deviation of the noise that sampling starts from.
function sigma_timesteps.init_noise_sigma(self)
  local largest = math.max(unpack(self.sigmas))
  if self.config.timestep_spacing == "leading" then return math.sqrt(largest ^ 2 + 1) end
  return largest
end

--- Returns the sample with a variance of 1, as the model expects.
function sigma_timesteps.scale_model_input(self, sample, index)
  return sample / math.sqrt(self.sigmas[index] ^ 2 + 1)
end

--- Returns the coefficients of x0 and noise at a place of the schedule.
function sigma_timesteps.coefficients(self, index) return 1, self.sigmas[index] end

--- Returns x0 and the derivative of the sample by sigma.
function sigma_timesteps.derivative(self, output, sample, sigma)
  local x0 = predictions.limited(self.config,
    predictions.clean_of_sigma(self, output, sample, sigma))
  return x0, (sample - x0) / sigma
end

--- Returns a class of these schedulers with `step`.
function sigma_timesteps.class(step)
  return {
    schedules = { linear = true, scaled_linear = true, squaredcos_cap_v2 = true },
    set_timesteps = sigma_timesteps.set,
    init_noise_sigma = sigma_timesteps.init_noise_sigma,
    scale_model_input = sigma_timesteps.scale_model_input,
    coefficients = sigma_timesteps.coefficients,
    step = step,
  }
end

return sigma_timesteps
