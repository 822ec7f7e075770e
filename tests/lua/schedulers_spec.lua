-- Schedulers of diffusion models against diffusers' numbers. tests/peers/schedulers_peer.py does
-- the same with random configurations.
local cases = require "scheduler_cases"
local redco = require "redco"
local testing = require "testing"

local scheduler, torch = redco.diffusion.scheduler, redco.torch
local test, expect_error = testing.test, testing.expect_error

local folders = { (os.getenv "REDCO_SOURCE" or "../..") .. "/tests/cases" }
for folder in (os.getenv "REDCO_CASES" or ""):gmatch "[^:]+" do folders[#folders + 1] = folder end

for _, folder in ipairs(folders) do
  local path = folder .. "/schedulers/schedulers.json"
  local file = io.open(path)
  if file then
    file:close()
    local all = redco.data.json(path)
    test("steps of " .. path, function()
      for _, case in ipairs(all.step_tables) do cases.check_steps(case, 1e-5) end
    end)
    test("noise and velocities of " .. path, function()
      for _, case in ipairs(all.add_noise) do cases.check_noise(case) end
    end)
    test("timesteps of " .. path, function()
      for _, case in ipairs(all.spacing) do cases.check_spacing(case) end
    end)
  end
end

test("each class goes into a scheduler_config.json and back", function()
  for name, config in pairs {
    DDPMScheduler = { beta_schedule = "scaled_linear", variance_type = "fixed_large" },
    DPMSolverMultistepScheduler = { use_karras_sigmas = true, solver_order = 3 },
    UniPCMultistepScheduler = { disable_corrector = { 0, 1 } },
    EulerDiscreteScheduler = { sigma_max = 12 }, FlowMatchEulerDiscreteScheduler = { shift = 3 },
  } do
    config._class_name = name
    local written = scheduler(config):to_json()
    testing.expect_equal(written._class_name, name)
    local again = scheduler(written)
    for key, value in pairs(scheduler(config).config) do
      if type(value) ~= "table" then testing.expect_equal(again.config[key], value) end
    end
  end
end)

test("a folder is read; keys of other classes are ignored, unknown ones refused", function()
  local folder = testing.folder()
  testing.write("scheduler_config.json", [[{"_class_name": "PNDMScheduler",
    "_diffusers_version": "0.6.0", "beta_schedule": "scaled_linear", "beta_start": 0.00085,
    "beta_end": 0.012, "clip_sample": false, "skip_prk_steps": true, "trained_betas": null,
    "steps_offset": 1}]])
  local found = scheduler(folder)
  testing.expect_equal(found.config.steps_offset, 1)
  testing.expect_equal(#found:set_timesteps(4).timesteps, 5)
  testing.expect_equal(tostring(found), "PNDMScheduler of 5 timesteps")
  testing.write("scheduler_config.json", [[{"_class_name": "DPMSolverMultistepScheduler",
    "lambda_min_clipped": -Infinity}]])
  testing.expect_equal(scheduler(folder).config.lambda_min_clipped, -math.huge)
  expect_error(function() scheduler { _class_name = "DDIMScheduler", use_magic = true } end,
    "use_magic")
  expect_error(function() scheduler { _class_name = "EDMEulerScheduler" } end,
    "EDMEulerScheduler is not supported", "EulerDiscreteScheduler")
  expect_error(function()
    scheduler { _class_name = "EulerDiscreteScheduler", use_beta_sigmas = true }
  end, "use_beta_sigmas is not supported")
  expect_error(function() scheduler { _class_name = "DDIMScheduler", beta_end = "x" } end,
    "beta_end: expected a number, got \"")
  expect_error(function()
    scheduler { _class_name = "DDIMScheduler", prediction_type = "score" }
  end, "prediction_type: 'score'")
  expect_error(function()
    scheduler { _class_name = "DPMSolverMultistepScheduler", algorithm_type = "dpmsolver" }
  end, "final_sigmas_type", "sigma_min")
end)

test("wrong calls of a scheduler are errors", function()
  local one = scheduler { _class_name = "DDPMScheduler" }
  local x = torch.zeros { 1, 2 }
  expect_error(function() one:step(x, 0, x) end, "call set_timesteps before it")
  expect_error(function() one:set_timesteps(1001) end, "1 to 1000")
  one:set_timesteps(2)
  expect_error(function() one:step(x, 3, x) end, "the timestep 3", "500 0")
  expect_error(function() one:step(x, 500, x) end, "needs a generator")
  expect_error(function() one:step(x, 500, x, { noise = torch.zeros { 2 } }) end, "[1, 2], got [2]")
  local generator = redco.Rng(1)
  for _, t in ipairs(one.timesteps) do x = one:step(x, t, x, { generator = generator }) end
  expect_error(function() one:step(x, 0, x) end, "all 2 timesteps are done")
  expect_error(function() one:add_noise(x, x, 1000) end, "0 to 999")
  expect_error(function()
    scheduler { _class_name = "FlowMatchEulerDiscreteScheduler" }:get_velocity(x, x, 1)
  end, "noise - sample")
end)

testing.finish()
