--- Checks schedulers against tables that diffusers made, step by step: `schedulers.json`.
local redco = require "redco"
local torch = redco.torch

local cases = {}

local function array(values) return torch.tensor(values, { dtype = "float64" }) end

local function new(case)
  local config = { _class_name = case.scheduler }
  for key, value in pairs(case.config) do config[key] = value end
  return redco.diffusion.scheduler(config)
end

local function expect_near(actual, expected, tolerance, what, ...)
  what = what:format(...)
  expected = array(expected)
  local off = (actual - expected):abs():max():item() / math.max(1e-3, expected:abs():max():item())
  if off ~= off or off > tolerance then
    error(("%s: off by %g of the largest value"):format(what, off), 0)
  end
end

--- Fails unless every step from the given model outputs and noise is diffusers', to `tolerance` of
--- the largest value (its tables are float32).
function cases.check_steps(case, tolerance)
  local scheduler = new(case):set_timesteps(case.steps, { mu = case.mu })
  local name = ("%s, %d steps"):format(case.scheduler, case.steps)
  assert(#scheduler.timesteps == #case.timesteps, name .. ": another number of timesteps")
  for i, t in ipairs(case.timesteps) do
    local off = math.abs(scheduler.timesteps[i] - t)
    assert(off <= 1e-5 * math.max(1, t), ("%s: timestep %d is off by %g"):format(name, i, off))
  end
  local off = scheduler.init_noise_sigma / case.init_noise_sigma - 1
  assert(math.abs(off) <= 1e-6, name .. ": init_noise_sigma is off by " .. off)
  if case.described then scheduler:set_begin_index(0) end
  local sample = array(case.start)
  for i, row in ipairs(case.rows) do
    local t = scheduler.timesteps[i]
    if row.scaled_model_input then
      expect_near(scheduler:scale_model_input(sample, t), row.scaled_model_input, tolerance,
        "%s: the scaled input of step %d", name, i)
    end
    local x0
    sample, x0 = scheduler:step(array(row.model_output), t, sample,
      { noise = row.noise and array(row.noise), eta = row.eta })
    expect_near(sample, row.prev_sample, tolerance, "%s: step %d", name, i)
    if row.pred_original_sample then
      expect_near(x0, row.pred_original_sample, tolerance, "%s: x0 of step %d", name, i)
    end
  end
end

function cases.check_noise(case)
  local scheduler = new { scheduler = "DDPMScheduler", config = case.config }
  for t, share in pairs(case.alphas_cumprod_at) do
    assert(math.abs(scheduler.alphas_cumprod[tonumber(t)]:item() - share) <= 1e-6, t)
  end
  local x, noise = array(case.x), array(case.noise)
  local t = torch.tensor(case.timesteps, { dtype = "int64" })
  expect_near(scheduler:add_noise(x, noise, t), case.noisy, 1e-6, "%s", "add_noise")
  expect_near(scheduler:get_velocity(x, noise, t), case.velocity, 1e-6, "%s", "get_velocity")
  expect_near(scheduler:add_noise(x, noise, case.timesteps[2])[1], case.noisy[2], 1e-6, "%s",
    "add_noise at one timestep")
end

function cases.check_spacing(case)
  local scheduler = new { scheduler = case.scheduler, config = {
    timestep_spacing = case.timestep_spacing, steps_offset = case.steps_offset } }
  local found = table.concat(scheduler:set_timesteps(case.steps).timesteps, " ")
  assert(found == table.concat(case.timesteps, " "), found)
end

return cases
