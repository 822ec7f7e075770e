--- scheduler_config.json: the keys of each class, their defaults, and what is refused.
local fail = require "redco.fail"
local names_of = require "redco.names_of"
local native = require "redco.native"
local ordered_table = require "redco.ordered_table"
local readers = require "redco.data.readers"

local config = {}

-- Keys of a noise schedule by betas.
local betas = {
  num_train_timesteps = 1000, beta_start = 0.0001, beta_end = 0.02, beta_schedule = "linear",
  trained_betas = false, prediction_type = "epsilon", steps_offset = 0,
}

local sigma_keys = { use_karras_sigmas = false, use_exponential_sigmas = false,
  use_beta_sigmas = false }

local threshold_keys = { thresholding = false, dynamic_thresholding_ratio = 0.995,
  sample_max_value = 1 }

local flow_keys = { use_flow_sigmas = false, flow_shift = 1, use_dynamic_shifting = false,
  time_shift_type = "exponential" }

local clip_keys = { clip_sample = true, clip_sample_range = 1 }

local function joined(...)
  local all = {}
  for _, keys in ipairs { ... } do
    for key, value in pairs(keys) do all[key] = value end
  end
  return all
end

--- The keys of each class with diffusers' defaults; false stands for null, too.
config.defaults = {
  DDPMScheduler = joined(betas, threshold_keys, clip_keys, { timestep_spacing = "leading",
    variance_type = "fixed_small", rescale_betas_zero_snr = false }),
  DDIMScheduler = joined(betas, threshold_keys, clip_keys, { timestep_spacing = "leading",
    set_alpha_to_one = true, rescale_betas_zero_snr = false }),
  PNDMScheduler = joined(betas, { timestep_spacing = "leading", skip_prk_steps = false,
    set_alpha_to_one = false }),
  DPMSolverMultistepScheduler = joined(betas, threshold_keys, sigma_keys, flow_keys, {
    timestep_spacing = "linspace", solver_order = 2, algorithm_type = "dpmsolver++",
    solver_type = "midpoint", lower_order_final = true, euler_at_final = false,
    use_lu_lambdas = false, final_sigmas_type = "zero", lambda_min_clipped = -math.huge,
    variance_type = false, rescale_betas_zero_snr = false }),
  EulerDiscreteScheduler = joined(betas, sigma_keys, { timestep_spacing = "linspace",
    interpolation_type = "linear", sigma_min = false, sigma_max = false,
    timestep_type = "discrete", rescale_betas_zero_snr = false, final_sigmas_type = "zero" }),
  EulerAncestralDiscreteScheduler = joined(betas, { timestep_spacing = "linspace",
    rescale_betas_zero_snr = false }),
  HeunDiscreteScheduler = joined(betas, sigma_keys, { timestep_spacing = "linspace",
    beta_start = 0.00085, beta_end = 0.012, clip_sample = false, clip_sample_range = 1 }),
  LMSDiscreteScheduler = joined(betas, sigma_keys, { timestep_spacing = "linspace" }),
  UniPCMultistepScheduler = joined(betas, threshold_keys, sigma_keys, flow_keys, {
    timestep_spacing = "linspace", solver_order = 2, predict_x0 = true, solver_type = "bh2",
    lower_order_final = true, disable_corrector = {}, solver_p = false,
    final_sigmas_type = "zero", rescale_betas_zero_snr = false }),
  FlowMatchEulerDiscreteScheduler = joined(sigma_keys, { num_train_timesteps = 1000, shift = 1,
    use_dynamic_shifting = false, base_shift = 0.5, max_shift = 1.15, base_image_seq_len = 256,
    max_image_seq_len = 4096, invert_sigmas = false, shift_terminal = false,
    time_shift_type = "exponential", stochastic_sampling = false }),
}

-- Keys that are supported only if they are false.
local unsupported = { "use_beta_sigmas", "solver_p" }

-- Keys that hold a number or, without one, null.
local nullable_types = { sigma_min = "number", sigma_max = "number", shift_terminal = "number",
  trained_betas = "table", variance_type = "string" }

local choices = {
  prediction_type = { epsilon = true, sample = true, v_prediction = true, flow_prediction = true },
  final_sigmas_type = { zero = true, sigma_min = true },
  time_shift_type = { exponential = true, linear = true },
  timestep_type = { discrete = true, continuous = true },
  interpolation_type = { linear = true, log_linear = true },
}

local function is_of_any_class(key)
  for _, defaults in pairs(config.defaults) do
    if defaults[key] ~= nil then return true end
  end
  return false
end

local function check_value(where, key, value, default)
  local expected = default == false and nullable_types[key] or type(default)
  if type(value) ~= expected and not (default == false and value == false) then
    fail("%s: %s: expected a %s, got %s", where, key, expected, native.describe(value))
  end
  local allowed = choices[key]
  if allowed and not allowed[value] then
    fail("%s: %s: '%s' is not supported", where, key, value)
  end
end

local function check_counts(where, c)
  for _, key in ipairs { "num_train_timesteps", "solver_order" } do
    if c[key] and (c[key] < 1 or c[key] % 1 ~= 0) then
      fail("%s: %s: expected a positive integer, got %s", where, key, c[key])
    end
  end
end

--- Reads a scheduler_config.json.
function config.read(path)
  -- DPM-Solver's lambda_min_clipped is mostly -Infinity, which JSON does not have.
  local text = readers.read(path):gsub('"lambda_min_clipped"%s*:%s*%-Infinity%s*,?', "")
  return native.json_decode(path, (text:gsub(",%s*}", "}")))
end

--- Returns the name of the class and all its keys, from the table of a scheduler_config.json. Keys
--- that only other classes have mean nothing to diffusers and nothing here.
function config.complete(where, given)
  local name = given._class_name
  local defaults = config.defaults[name]
  if not defaults then
    fail("%s: _class_name: the scheduler %s is not supported, only %s", where, name,
      table.concat(names_of(config.defaults), ", "))
  end
  local c = {}
  for key, value in pairs(defaults) do c[key] = value end
  for key, value in pairs(given) do
    if defaults[key] ~= nil then
      check_value(where, key, value, defaults[key])
      c[key] = value
    elseif type(key) ~= "string" or key:sub(1, 1) ~= "_" and value ~= false
      and not is_of_any_class(key) then
      fail("%s: %s is not a key of diffusers' schedulers that is supported here", where,
        key)
    end
  end
  for _, key in ipairs(unsupported) do
    if c[key] then fail("%s: %s is not supported", where, key) end
  end
  check_counts(where, c)
  return name, c
end

-- The fields that diffusers' pipelines correct in outdated configurations.
local corrections = {
  StableDiffusionPipeline = { steps_offset = 1, clip_sample = false },
  StableDiffusionImg2ImgPipeline = { steps_offset = 1, clip_sample = false },
  StableDiffusionInpaintPipeline = { steps_offset = 1, skip_prk_steps = true },
}

--- Returns the scheduler's configuration as a pipeline of this class uses it.
function config.corrected(pipeline_class, given)
  local defaults, result = config.defaults[given._class_name], given
  for key, value in pairs(corrections[pipeline_class] or {}) do
    if defaults and defaults[key] ~= nil and given[key] ~= value then
      if result == given then
        result = {}
        for name, old in pairs(given) do result[name] = old end
      end
      result[key] = value
    end
  end
  return result
end

--- Returns the ordered table that diffusers reads as scheduler_config.json.
function config.to_json(name, c)
  local entries = { { "_class_name", name }, { "_diffusers_version", "0.35.2" } }
  for key in pairs(config.defaults[name]) do
    local value = c[key]
    -- JSON has no infinity. An absent key has its default.
    if value ~= -math.huge and not (key == "disable_corrector" and #value == 0) then
      if value == false and nullable_types[key] then value = nil end
      entries[#entries + 1] = { key, value }
    end
  end
  return ordered_table(entries)
end

return config
