--- DDPM (arXiv 2006.11239): every step draws from the posterior.
local fail = require "redco.fail"
local predictions = require "redco.diffusion.schedulers.predictions"
local tables = require "redco.diffusion.schedulers.tables"

local ddpm = {
  schedules = { linear = true, scaled_linear = true, squaredcos_cap_v2 = true, sigmoid = true },
}

function ddpm.set_timesteps(self, n)
  local c = self.config
  self.timesteps = tables.map(tables.spaced(self.name, c, n), tables.round)
end

-- The standard deviation of the noise, by variance_type: of the posterior's variance, of the beta
-- of the step, and of the variance that the model predicts, if it does.
local deviations = {
  fixed_small = function(variance) return math.sqrt(variance) end,
  fixed_small_log = function(variance) return math.sqrt(variance) end,
  fixed_large = function(_, beta) return math.sqrt(beta) end,
  learned = function(_, _, predicted) return predicted:sqrt() end,
  learned_range = function(variance, beta, predicted)
    local share = (predicted + 1) / 2
    return ((share * math.log(beta) + (1 - share) * math.log(variance)) / 2):exp()
  end,
}

function ddpm.step(self, output, t, sample, o)
  local c = self.config
  local previous = self:next_timestep(t)
  local kept = self:share(t)
  local kept_before = previous >= 0 and self:share(previous) or 1
  local alpha = kept / kept_before
  local predicted
  if c.variance_type:find "learned" and output:size(1) == 2 * sample:size(1) then
    output, predicted = unpack(output:split(sample:size(1), 1))
  end
  local x0 = predictions.limited(c, predictions.clean(self, output, sample, math.sqrt(kept),
    math.sqrt(1 - kept)))
  local mean = (math.sqrt(kept_before) * (1 - alpha) / (1 - kept)) * x0
    + (math.sqrt(alpha) * (1 - kept_before) / (1 - kept)) * sample
  if t <= 0 then return mean, x0 end
  local variance = math.max((1 - kept_before) / (1 - kept) * (1 - alpha), 1e-20)
  local deviation = deviations[c.variance_type](variance, 1 - alpha, predicted)
  return mean + deviation * self:noise_like(output, o), x0
end

function ddpm.check(self)
  local c = self.config
  if not deviations[c.variance_type] then
    fail("%s: variance_type: '%s' is not supported", self.name, c.variance_type)
  end
end

return ddpm
