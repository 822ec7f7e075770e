--- DPM-Solver and DPM-Solver++ (arXiv 2206.00927, 2211.01095) of orders 1 to 3, and their
--- stochastic forms.
local fail = require "redco.fail"
local predictions = require "redco.diffusion.schedulers.predictions"
local solver_timesteps = require "redco.diffusion.schedulers.solver_timesteps"

local dpmsolver = {
  schedules = { linear = true, scaled_linear = true, squaredcos_cap_v2 = true },
  coefficients = solver_timesteps.coefficients,
}

function dpmsolver.set_timesteps(self, n)
  solver_timesteps.set(self, n, self.config.beta_schedule ~= "squaredcos_cap_v2")
end

-- In a step of width 0, x may be rounded to less than 0.
local function root(x) return math.sqrt(math.max(x, 0)) end

local function phi2(x) return (math.exp(x) - 1) / x end
local function phi3(x) return (math.exp(x) - 1 - x) / x ^ 2 end

-- The factors of a step of width h in lambda, by algorithm_type: of the sample, of the newest
-- output (d0) and of its differences (d1, d2), and of noise. `s` and `t` are the coefficients
-- {alpha, sigma} before and after the step. d1 depends on solver_type.
local algorithms = {}

algorithms["dpmsolver++"] = function(s, t, h)
  return { sample = t.sigma / s.sigma, d0 = -t.alpha * (math.exp(-h) - 1),
    midpoint = -t.alpha * (math.exp(-h) - 1) / 2, heun = t.alpha * (1 - phi2(-h)),
    d2 = -t.alpha * (phi3(-h) - 0.5) }
end

algorithms.dpmsolver = function(s, t, h)
  return { sample = t.alpha / s.alpha, d0 = -t.sigma * (math.exp(h) - 1),
    midpoint = -t.sigma * (math.exp(h) - 1) / 2, heun = -t.sigma * (phi2(h) - 1),
    d2 = -t.sigma * (phi3(h) - 0.5) }
end

algorithms["sde-dpmsolver++"] = function(s, t, h)
  local rest = 1 - math.exp(-2 * h)
  return { sample = t.sigma / s.sigma * math.exp(-h), d0 = t.alpha * rest,
    midpoint = t.alpha * rest / 2, heun = t.alpha * (1 - phi2(-2 * h)),
    d2 = t.alpha * ((rest - 2 * h) / (2 * h) ^ 2 - 0.5), noise = t.sigma * root(rest) }
end

algorithms["sde-dpmsolver"] = function(s, t, h)
  return { sample = t.alpha / s.alpha, d0 = -2 * t.sigma * (math.exp(h) - 1),
    midpoint = -t.sigma * (math.exp(h) - 1), heun = -2 * t.sigma * (phi2(h) - 1),
    noise = t.sigma * root(math.exp(2 * h) - 1) }
end

local function at(self, index)
  local alpha, sigma, lambda = self:coefficients(index)
  return { alpha = alpha, sigma = sigma, lambda = lambda }
end

local function predicts_clean(c) return c.algorithm_type:find "%+%+$" ~= nil end

-- The output as the algorithm needs it: x0, or the noise.
local function converted(self, output, sample)
  local c, s = self.config, at(self, self.index)
  if c.variance_type and c.prediction_type == "epsilon" then output = output:narrow(1, 0, 3) end
  if predicts_clean(c) then
    if c.prediction_type == "flow_prediction" then
      return predictions.limited(c, sample - s.sigma * output)
    end
    return predictions.limited(c, predictions.clean(self, output, sample, s.alpha, s.sigma))
  end
  local noise = predictions.noise(self, output, sample, s.alpha, s.sigma)
  if not c.thresholding then return noise end
  local x0 = predictions.limited(c, (sample - s.sigma * noise) / s.alpha)
  return (sample - s.alpha * x0) / s.sigma
end

-- The order of this step: lower at the start, and at the end of few steps.
local function order_now(self)
  local c, left = self.config, #self.timesteps - self.index
  local is_short = c.lower_order_final and #self.timesteps < 15
  if left == 0 and (c.euler_at_final or is_short or c.final_sigmas_type == "zero") then return 1 end
  local order = math.min(c.solver_order, self.n_known + 1)
  return left == 1 and is_short and math.min(order, 2) or order
end

function dpmsolver.step(self, output, _, sample, o)
  local c = self.config
  output = converted(self, output, sample)
  solver_timesteps.remember(self, output)
  local outputs, index, order = self.outputs, self.index, order_now(self)
  local t, s = at(self, index + 1), at(self, index)
  local h = t.lambda - s.lambda
  local factors = algorithms[c.algorithm_type](s, t, h)
  local result = factors.sample * sample + factors.d0 * output
  if order > 1 then
    local ratio = (s.lambda - at(self, index - 1).lambda) / h
    local d1, kind = (outputs[1] - outputs[2]) / ratio, c.solver_type
    if order > 2 then
      local ratio2 = (at(self, index - 1).lambda - at(self, index - 2).lambda) / h
      local older = (outputs[2] - outputs[3]) / ratio2
      local d2 = (d1 - older) / (ratio + ratio2)
      d1, kind = d1 + ratio * d2, "heun"
      result = result + factors.d2 * d2
    end
    result = result + factors[kind] * d1
  end
  if factors.noise then result = result + factors.noise * self:noise_like(output, o) end
  self.n_known = math.min(self.n_known + 1, c.solver_order)
  return result
end

-- Like diffusers, accepts the solver types of other solvers.
local same_types = { logrho = "midpoint", bh1 = "midpoint", bh2 = "midpoint" }

function dpmsolver.check(self)
  local c = self.config
  if c.algorithm_type == "deis" then c.algorithm_type = "dpmsolver++" end
  if not algorithms[c.algorithm_type] then
    fail("%s: algorithm_type: '%s' is not supported", self.name, c.algorithm_type)
  end
  c.solver_type = same_types[c.solver_type] or c.solver_type
  if c.solver_type ~= "midpoint" and c.solver_type ~= "heun" then
    fail("%s: solver_type: '%s' is not supported", self.name, c.solver_type)
  end
  if c.solver_order > (c.algorithm_type == "sde-dpmsolver" and 2 or 3) then
    fail("%s: solver_order: %d is not supported with %s", self.name, c.solver_order,
      c.algorithm_type)
  end
  if not predicts_clean(c) and c.final_sigmas_type == "zero" then
    fail("%s: final_sigmas_type: 'zero' is not possible with %s; expected 'sigma_min'", self.name,
      c.algorithm_type)
  end
end

return dpmsolver
