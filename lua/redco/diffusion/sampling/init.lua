--- Pictures from a pipeline: text to image, image to image, inpainting.
local arguments = require "redco.arguments"
local check_choice = require "redco.check_choice"
local check_integer = require "redco.check_integer"
local conditions = require "redco.diffusion.sampling.conditions"
local fail = require "redco.fail"
local native = require "redco.native"
local new_scheduler = require "redco.diffusion.schedulers"
local start = require "redco.diffusion.sampling.start"
local torch = require "redco.torch"

local sampling = {}

local options = arguments("pipeline.generate", {
  guidance_rescale = 0, num_images_per_prompt = 1, clip_skip = 0, eta = 0, output = "images",
}, { "num_inference_steps", "guidance_scale", "true_cfg_scale", "height", "width", "strength",
  "seed", "rng", "latents", "scheduler", "on_step" })

local defaults = { num_inference_steps = 50, guidance_scale = 7.5 }

-- Completes and checks the options of a call.
local function read(pipeline, given)
  local where, all = "pipeline.generate", {}
  for _, set in ipairs { defaults, pipeline.kind.defaults or {}, options(given) } do
    for key, value in pairs(set) do all[key] = value end
  end
  check_integer(where, "num_inference_steps", all.num_inference_steps, 1)
  check_integer(where, "num_images_per_prompt", all.num_images_per_prompt, 1)
  local scale, latents = start.scale(pipeline), start.latents(pipeline)
  local multiple = scale * latents.patch
  for _, side in ipairs { "height", "width" } do
    local size = latents.sample_size
    if type(size) == "table" then size = size[side == "height" and 1 or 2] end
    if not all[side] and not size then
      fail("%s: %s is missing, and the UNet has no sample_size", where, side)
    end
    all[side] = all[side] or size * scale
    check_integer(where, side, all[side], 1)
    if all[side] % multiple ~= 0 then
      fail("%s: %s: expected a multiple of %d, got %d", where, side, multiple, all[side])
    end
  end
  check_choice(where, "output", all.output, "images", "latents")
  if all.rng and all.seed then fail("%s: give rng or seed, not both", where) end
  all.rng = all.rng or all.seed and native.Rng(all.seed)
    or fail("%s: it needs a seed, or rng, the Generator that pred_fn is given", where)
  return all
end

-- The shift of flow matching that grows with the number of patches, or nil.
local function mu_of(pipeline, scheduler, o)
  local c = scheduler.config
  if not c.use_dynamic_shifting then return nil end
  local side = start.scale(pipeline) * start.latents(pipeline).patch
  local slope = (c.max_shift - c.base_shift) / (c.max_image_seq_len - c.base_image_seq_len)
  return c.base_shift + slope * (o.height * o.width / side ^ 2 - c.base_image_seq_len)
end

-- Returns a new scheduler for each call, because a scheduler has a state. If o.scheduler is a name,
-- it selects another class with the same settings.
local function scheduler_of(pipeline, o)
  local config = pipeline.scheduler_config
  if type(o.scheduler) == "string" then
    local changed = {}
    for key, value in pairs(config) do changed[key] = value end
    changed._class_name = o.scheduler
    config = changed
  elseif o.scheduler then
    config = o.scheduler
  end
  local scheduler = new_scheduler(config)
  return scheduler:set_timesteps(o.num_inference_steps, { mu = mu_of(pipeline, scheduler, o),
    sigmas = pipeline.kind.sigmas and pipeline.kind.sigmas(o.num_inference_steps) })
    :set_begin_index(0)
end

local function is_meta(t) return t:to_local().device == "meta" end

local function check_finite(latents, step)
  if not is_meta(latents) and latents:isnan():any():item() then
    fail("pipeline.generate: the latents are NaN after step %d: the weights or the inputs have "
      .. "NaN, or numbers are too large for the dtype %s", step, latents.dtype)
  end
end

-- Latents to images in [0, 1].
local function decoded(pipeline, params, latents)
  local c = pipeline.vae.config
  local images = pipeline.vae.decode(params.vae,
    latents / c.scaling_factor + (c.shift_factor or 0))
  return (images / 2 + 0.5):clamp(0, 1)
end

-- Returns how far to move from the negative prompt; up to 1 means not at all. A model that takes
-- guidance_scale as an input moves by itself, so only a given negative prompt counts.
local function distance_of(pipeline, batch, o)
  if not pipeline.kind.is_told_guidance then
    if o.true_cfg_scale then
      fail("pipeline.generate: true_cfg_scale is not for a %s: give guidance_scale",
        pipeline.class_name)
    end
    return o.guidance_scale
  end
  return batch.negative_input_ids and o.true_cfg_scale or 1
end

-- Removes noise from `begun` (see start.of), step by step, guided by `distance`.
local function denoised(pipeline, params, scheduler, begun, told, o, distance)
  local is_guided = distance > 1
  local latents, timesteps = begun.latents, scheduler.timesteps
  for i = begun.first + 1, #timesteps do
    native.check_stop()
    local t = timesteps[i]
    local input = scheduler:scale_model_input(latents, t)
    if begun.extra then input = torch.cat({ input, begun.extra }, 1) end
    if is_guided then input = conditions.paired(input, input) end
    local output = pipeline.denoiser(params[pipeline.kind.model], input, t, told.states,
      told.options)
    output = start.without_variance(pipeline, output)
    if is_guided then
      output = conditions.guided(output, distance, o.guidance_rescale)
    end
    latents = scheduler:step(output, t, latents, { generator = o.rng, eta = o.eta })
    if begun.mask then
      local kept = begun.kept
      if timesteps[i + 1] then kept = scheduler:add_noise(kept, begun.noise, timesteps[i + 1]) end
      latents = (1 - begun.mask) * kept + begun.mask * latents
    end
    check_finite(latents, i)
    if o.on_step then o.on_step(i - begun.first, #timesteps - begun.first, latents) end
    if is_meta(latents) then break end  -- one step decides the layout of the parameters
  end
  return latents
end

local function generate(pipeline, params, batch, given)
  local ids = type(batch) == "table" and (batch.input_ids or batch.class_labels)
  if not torch.is_tensor(ids) then
    fail("pipeline.generate: expected a batch with %s, as pipeline.tokenize returns it",
      pipeline.kind.texts and "input_ids" or "class_labels")
  end
  local o = read(pipeline, given)
  local distance = distance_of(pipeline, batch, o)
  local is_guided = distance > 1
  local told = conditions.of(pipeline, params, batch, o, is_guided)
  local pictures = ids:size(0) * o.num_images_per_prompt
  local scheduler = scheduler_of(pipeline, o)
  local states = told.states
  if is_guided then states = states:unflatten(0, { -1, 2 }):select(1, 1) end
  local begun = start.of(pipeline, params, scheduler, batch, states, pictures, o)
  local latents = denoised(pipeline, params, scheduler, begun, told, o, distance)
  return o.output == "latents" and latents or decoded(pipeline, params, latents)
end

--- pipeline.generate(params, batch, options) -> images [pictures, 3, height, width] from 0 to 1.
function sampling.generate(pipeline, params, batch, given)
  return torch.no_grad(generate, pipeline, params, batch, given)
end

return sampling
