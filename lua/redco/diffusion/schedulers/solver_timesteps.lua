--- Timesteps, sigmas and log-ratios of the solvers in lambda = log(alpha / sigma): DPM-Solver++ and
--- UniPC.
local tables = require "redco.diffusion.schedulers.tables"

local solver_timesteps = {}

-- The number of training timesteps whose lambda is at least lambda_min_clipped.
local function last_timestep(self)
  local c, n = self.config, 0
  if c.lambda_min_clipped == nil then return c.num_train_timesteps end
  for _, sigma in ipairs(self.training_sigmas) do
    if -math.log(sigma) >= c.lambda_min_clipped then n = n + 1 end
  end
  return n
end

local function truncated(t) return t >= 0 and math.floor(t) or math.ceil(t) end

local function flow_sigmas(c, n)
  local all = tables.linspace(1, 1 / c.num_train_timesteps, n + 1)
  local sigmas = {}
  for i = n + 1, 2, -1 do
    local sigma = 1 - all[i]
    sigmas[#sigmas + 1] = c.flow_shift * sigma / (1 + (c.flow_shift - 1) * sigma)
  end
  return sigmas
end

--- Sets self.timesteps, integers, and self.sigmas. `rounds` says whether timesteps that belong to
--- sigmas are rounded, `last_is_own` whether a final sigma_min is the last of the sigmas in use.
function solver_timesteps.set(self, n, rounds, last_is_own)
  local c, training = self.config, self.training_sigmas
  local timesteps, sigmas
  local last = training[1]
  local respaced = tables.respaced(self.name, c, training[#training], training[1], n)
  if respaced then
    sigmas = respaced
    timesteps = tables.map(sigmas, function(s)
      local t = tables.timestep_of(s, training)
      return rounds and not c.use_exponential_sigmas and tables.round(t) or t
    end)
  elseif c.use_flow_sigmas then
    sigmas = flow_sigmas(c, n)
    timesteps = tables.map(sigmas, function(s) return s * c.num_train_timesteps end)
  else
    timesteps = tables.map(tables.spaced(self.name, c, n, 1, last_timestep(self)), tables.round)
    sigmas = tables.map(timesteps, function(t) return tables.interpolate(training, t) end)
  end
  if last_is_own and (respaced or c.use_flow_sigmas) then last = sigmas[#sigmas] end
  sigmas[#sigmas + 1] = c.final_sigmas_type == "sigma_min" and last or 0
  self.sigmas = tables.map(sigmas, tables.float32)
  self.timesteps = tables.map(timesteps, truncated)
  self.outputs, self.n_known = {}, 0
end

--- Returns the coefficients of x0 and noise at a place of the schedule, and their log-ratio.
function solver_timesteps.coefficients(self, index)
  local sigma = self.sigmas[index]
  if self.config.use_flow_sigmas then
    return 1 - sigma, sigma, math.log(1 - sigma) - math.log(sigma)
  end
  local alpha = 1 / math.sqrt(sigma ^ 2 + 1)
  return alpha, sigma * alpha, -math.log(sigma)
end

--- Keeps the newest `order` converted outputs, newest first.
function solver_timesteps.remember(self, output)
  table.insert(self.outputs, 1, output)
  self.outputs[self.config.solver_order + 1] = nil
end

return solver_timesteps
