--- PNDM (arXiv 2202.09778): a linear multistep method, after a start with Runge-Kutta steps or,
--- with skip_prk_steps, with one step taken twice.
local fail = require "redco.fail"
local tables = require "redco.diffusion.schedulers.tables"

local pndm = {
  schedules = { linear = true, scaled_linear = true, squaredcos_cap_v2 = true },
}

-- The Runge-Kutta part visits each of the first timesteps and the middles between them.
local function runge_kutta_timesteps(all, half)
  local visited = {}
  for i = 1, 4 do
    visited[#visited + 1] = all[i]
    -- The next timestep in sampling, half a stride after all[i].
    if i < 4 then visited[#visited + 1] = all[i + 1] + half end
  end
  local timesteps = {}
  for i, t in ipairs(visited) do
    timesteps[#timesteps + 1] = t
    if i > 1 and i < #visited then timesteps[#timesteps + 1] = t end
  end
  return timesteps
end

function pndm.set_timesteps(self, n)
  local c = self.config
  local all = tables.map(tables.spaced(self.name, c, n), tables.round)
  self.stride = math.floor(c.num_train_timesteps / n)
  self.outputs, self.count, self.sum, self.start = {}, 0, nil, nil
  self.n_runge_kutta = 0
  if c.skip_prk_steps then
    table.insert(all, 2, all[2])
    self.timesteps = all
    return
  end
  if n < 4 then
    fail("%s:set_timesteps: expected at least 4 steps without skip_prk_steps, got %d", self.name, n)
  end
  local timesteps = runge_kutta_timesteps(all, math.floor(self.stride / 2))
  self.n_runge_kutta = #timesteps
  for i = 4, #all do timesteps[#timesteps + 1] = all[i] end
  self.timesteps = timesteps
end

-- Equation 11 of the paper: goes from timestep `t` to `before` along the noise.
local function transfer(self, sample, t, before, output)
  local kept, kept_before = self:share(t), self:share_or_final(before)
  if self.config.prediction_type == "v_prediction" then
    output = math.sqrt(kept) * output + math.sqrt(1 - kept) * sample
  elseif self.config.prediction_type ~= "epsilon" then
    fail("%s: prediction_type: '%s' is not supported by this class", self.name,
      self.config.prediction_type)
  end
  local below = kept * math.sqrt(1 - kept_before) + math.sqrt(kept * (1 - kept) * kept_before)
  return math.sqrt(kept_before / kept) * sample - ((kept_before - kept) / below) * output
end

local weights = { 1 / 6, 1 / 3, 1 / 3, 1 / 6 }

local function runge_kutta_step(self, output, t, sample)
  local place = self.count % 4
  local before = t - (self.count % 2 == 0 and math.floor(self.stride / 2) or 0)
  local from = self.timesteps[self.count - place + 1]
  if place == 0 then
    self.outputs[#self.outputs + 1], self.start, self.sum = output, sample, nil
  end
  local weighted = weights[place + 1] * output
  self.sum = self.sum and self.sum + weighted or weighted
  return transfer(self, self.start, from, before, place == 3 and self.sum or output)
end

-- The factors of the newest outputs, newest first.
local multistep = { { 1 }, { 3 / 2, -1 / 2 }, { 23 / 12, -16 / 12, 5 / 12 },
  { 55 / 24, -59 / 24, 37 / 24, -9 / 24 } }

local function multistep_step(self, output, t, sample)
  local before = t - self.stride
  local outputs = self.outputs
  if self.count == 1 and self.config.skip_prk_steps then
    -- The first step again, with the mean of the outputs at both of its ends.
    output = (output + outputs[#outputs]) / 2
    sample, self.start = self.start, nil
    return transfer(self, sample, t + self.stride, t, output)
  end
  if self.count == 0 then self.start = sample end
  outputs[#outputs + 1] = output
  if #outputs > 4 then table.remove(outputs, 1) end
  local sum
  for i, factor in ipairs(multistep[#outputs]) do
    local term = factor * outputs[#outputs + 1 - i]
    sum = sum and sum + term or term
  end
  return transfer(self, sample, t, before, sum)
end

function pndm.step(self, output, t, sample)
  local step = self.count < self.n_runge_kutta and runge_kutta_step or multistep_step
  local result = step(self, output, t, sample)
  self.count = self.count + 1
  return result
end

return pndm
