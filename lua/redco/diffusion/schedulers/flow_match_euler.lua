--- Euler's method for flow matching, as of SD3 and Flux: a sample is (1 - sigma) * x0 + sigma *
--- noise, and the model predicts noise - x0.
local fail = require "redco.fail"
local tables = require "redco.diffusion.schedulers.tables"

local flow = { has_flow = true, schedules = {} }

local time_shifts = {
  exponential = function(mu, t) return math.exp(mu) / (math.exp(mu) + (1 / t - 1)) end,
  linear = function(mu, t) return mu / (mu + (1 / t - 1)) end,
}

local function shifted(shift, sigma) return shift * sigma / (1 + (shift - 1) * sigma) end

--- Returns the sigmas of training, ascending: a list of num_train_timesteps.
function flow.training_sigmas(c)
  local sigmas = {}
  for i = 1, c.num_train_timesteps do
    local sigma = tables.float32(i / c.num_train_timesteps)
    if not c.use_dynamic_shifting then sigma = tables.float32(shifted(c.shift, sigma)) end
    sigmas[i] = sigma
  end
  return sigmas
end

--- With use_dynamic_shifting the shift depends on the size of the picture: `mu` of the options.
--- Their `sigmas` are those of the steps before the shift.
function flow.set_timesteps(self, n, o)
  local c, training = self.config, self.training_sigmas
  if c.use_dynamic_shifting and not o.mu then
    fail("%s:set_timesteps: use_dynamic_shifting is set, so it needs mu", self.name)
  end
  local total = c.num_train_timesteps
  local unshifted = o.sigmas or tables.map(tables.linspace(training[#training] * total,
    training[1] * total, n), function(t) return t / total end)
  local sigmas = tables.map(unshifted,
    function(sigma)
      if c.use_dynamic_shifting then return time_shifts[c.time_shift_type](o.mu, sigma) end
      return shifted(c.shift, sigma)
    end)
  if c.shift_terminal then
    local stretch = (1 - sigmas[n]) / (1 - c.shift_terminal)
    sigmas = tables.map(sigmas, function(sigma) return 1 - (1 - sigma) / stretch end)
  end
  sigmas = tables.respaced(self.name, c, sigmas[1], sigmas[n], n) or sigmas
  if c.invert_sigmas then
    sigmas = tables.map(sigmas, function(sigma) return 1 - sigma end)
  end
  self.timesteps = tables.map(sigmas, function(sigma)
    return tables.float32(tables.float32(sigma) * total)
  end)
  sigmas[n + 1] = c.invert_sigmas and 1 or 0
  self.sigmas = tables.map(sigmas, tables.float32)
end

function flow.coefficients(self, index) return 1 - self.sigmas[index], self.sigmas[index] end

function flow.step(self, output, _, sample, o)
  local sigma, next_sigma = self.sigmas[self.index], self.sigmas[self.index + 1]
  if self.config.stochastic_sampling then
    local x0 = sample - sigma * output
    return (1 - next_sigma) * x0 + next_sigma * self:noise_like(sample, o), x0
  end
  return sample + (next_sigma - sigma) * output, sample - sigma * output
end

return flow
