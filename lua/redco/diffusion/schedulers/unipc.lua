--- UniPC (arXiv 2302.04867): each step predicts, and corrects the one before with the new output.
local fail = require "redco.fail"
local predictions = require "redco.diffusion.schedulers.predictions"
local solver_timesteps = require "redco.diffusion.schedulers.solver_timesteps"

local unipc = {
  schedules = { linear = true, scaled_linear = true, squaredcos_cap_v2 = true },
  coefficients = solver_timesteps.coefficients,
}

function unipc.set_timesteps(self, n)
  solver_timesteps.set(self, n, true, true)
  self.last_sample, self.order = nil, nil
end

local function converted(self, output, sample)
  local c = self.config
  local alpha, sigma = self:coefficients(self.index)
  if not c.predict_x0 then return predictions.noise(self, output, sample, alpha, sigma) end
  if c.prediction_type == "flow_prediction" then
    return predictions.limited(c, sample - sigma * output)
  end
  return predictions.limited(c, predictions.clean(self, output, sample, alpha, sigma))
end

-- Solves the equations rows * x = values by elimination with pivots.
local function solved(rows, values)
  local n = #rows
  for column = 1, n do
    local best = column
    for i = column + 1, n do
      if math.abs(rows[i][column]) > math.abs(rows[best][column]) then best = i end
    end
    rows[column], rows[best] = rows[best], rows[column]
    values[column], values[best] = values[best], values[column]
    for i = 1, n do
      if i ~= column then
        local factor = rows[i][column] / rows[column][column]
        for j = 1, n do rows[i][j] = rows[i][j] - factor * rows[column][j] end
        values[i] = values[i] - factor * values[column]
      end
    end
  end
  local x = {}
  for i = 1, n do x[i] = values[i] / rows[i][i] end
  return x
end

-- Returns the factors of the first `n` differences in a step of width h, which is negated if
-- outputs are x0: equation 12 of the paper. `ratios` are the places of the outputs on the step.
local function factors(ratios, h, b_h, n)
  local rows, values = {}, {}
  local phi, factorial = (math.exp(h) - 1) / h - 1, 1
  for i = 1, n do
    rows[i] = {}
    for j = 1, n do rows[i][j] = ratios[j] ^ (i - 1) end
    values[i] = phi * factorial / b_h
    factorial = factorial * (i + 1)
    phi = phi / h - 1 / factorial
  end
  return solved(rows, values)
end

-- Goes from `from` to `to`, places of the schedule. `outputs` are those known at `from`, newest
-- first; `new` is the output at `to` for the corrector, nil for the predictor.
local function update(self, sample, from, to, outputs, order, new)
  local c = self.config
  local alpha_t, sigma_t, lambda_t = self:coefficients(to)
  local alpha_s, sigma_s, lambda_s = self:coefficients(from)
  local width = lambda_t - lambda_s
  local h = c.predict_x0 and -width or width
  local growth = math.exp(h) - 1
  local b_h = c.solver_type == "bh1" and h or growth
  local ratios, differences = {}, {}
  for i = 1, order - 1 do
    local _, _, lambda = self:coefficients(from - i)
    ratios[i] = (lambda - lambda_s) / width
    differences[i] = (outputs[i + 1] - outputs[1]) / ratios[i]
  end
  ratios[order] = 1
  local n = new and order or order - 1
  -- The paper's degenerate cases.
  local weights = n == 1 and { 0.5 } or n > 1 and factors(ratios, h, b_h, n) or {}
  if new then differences[order] = new - outputs[1] end
  local scale, slope = sigma_t / sigma_s, alpha_t
  if not c.predict_x0 then scale, slope = alpha_t / alpha_s, sigma_t end
  local result = scale * sample - (slope * growth) * outputs[1]
  for i = 1, n do result = result - (slope * b_h * weights[i]) * differences[i] end
  return result
end

function unipc.step(self, output, _, sample)
  local c, index = self.config, self.index
  local new = converted(self, output, sample)
  if self.last_sample and not self.is_uncorrected[index - 2] then
    sample = update(self, self.last_sample, index - 1, index, self.outputs, self.order, new)
  end
  solver_timesteps.remember(self, new)
  local order = c.solver_order
  if c.lower_order_final then order = math.min(order, #self.timesteps + 1 - index) end
  self.order = math.min(order, self.n_known + 1)
  self.last_sample = sample
  self.n_known = math.min(self.n_known + 1, c.solver_order)
  return update(self, sample, index, index + 1, self.outputs, self.order)
end

-- Like diffusers, accepts the solver types of other solvers.
local same_types = { midpoint = "bh2", heun = "bh2", logrho = "bh2" }

function unipc.check(self)
  local c = self.config
  c.solver_type = same_types[c.solver_type] or c.solver_type
  if c.solver_type ~= "bh1" and c.solver_type ~= "bh2" then
    fail("%s: solver_type: '%s' is not supported", self.name, c.solver_type)
  end
  self.is_uncorrected = {}
  for _, step in ipairs(c.disable_corrector) do self.is_uncorrected[step] = true end
end

return unipc
