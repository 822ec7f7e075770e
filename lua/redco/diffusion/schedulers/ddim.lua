--- DDIM (arXiv 2010.02502): deterministic steps, or with a share `eta` of DDPM's noise.
local predictions = require "redco.diffusion.schedulers.predictions"
local tables = require "redco.diffusion.schedulers.tables"

local ddim = {
  schedules = { linear = true, scaled_linear = true, squaredcos_cap_v2 = true },
}

function ddim.set_timesteps(self, n)
  local c = self.config
  self.timesteps = tables.map(tables.spaced(self.name, c, n), tables.round)
  self.stride = math.floor(c.num_train_timesteps / n)
end

function ddim.step(self, output, t, sample, o)
  local c = self.config
  local kept = self:share(t)
  local kept_before = self:share_or_final(t - self.stride)
  local alpha, sigma = math.sqrt(kept), math.sqrt(1 - kept)
  local x0 = predictions.limited(c, predictions.clean(self, output, sample, alpha, sigma))
  local noise = predictions.noise(self, output, sample, alpha, sigma)
  local variance = (1 - kept_before) / (1 - kept) * (1 - kept / kept_before)
  local deviation = o.eta * math.sqrt(variance)
  local before = math.sqrt(kept_before) * x0
    + math.sqrt(1 - kept_before - deviation ^ 2) * noise
  if o.eta > 0 then before = before + deviation * self:noise_like(output, o) end
  return before, x0
end

return ddim
