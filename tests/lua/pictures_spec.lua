-- Pictures from a pipeline beside diffusers' (tests/tools/make_picture_cases.py), the losses, and
-- what is refused.
local redco = require "redco"
local testing = require "testing"

local torch = redco.torch
local test, expect_error, expect_close = testing.test, testing.expect_error, testing.expect_close

local source = os.getenv "REDCO_SOURCE" or "../.."
local pipeline = redco.diffusion.from_pretrained(source .. "/tests/cases/stable_diffusion")
local arrays = torch.load "picture_cases.safetensors"
local side = arrays.image:size(2)

local betas = { beta_start = 0.00085, beta_end = 0.012, beta_schedule = "scaled_linear" }
local settings = {
  DDIMScheduler = { clip_sample = false, set_alpha_to_one = false, steps_offset = 1 },
  PNDMScheduler = { skip_prk_steps = true, steps_offset = 1 },
}

local function scheduler_of(name)
  local config = { _class_name = name }
  for _, keys in ipairs { betas, settings[name] or {} } do
    for key, value in pairs(keys) do config[key] = value end
  end
  return config
end

local function batch_of(prompts, negative)
  local batch = pipeline.tokenize(prompts)
  batch.negative_input_ids = negative and pipeline.tokenize(negative).input_ids
  return batch
end

local function options_of(name, more)
  local o = { guidance_scale = 4, latents = arrays.noise, output = "latents", seed = 0,
    scheduler = scheduler_of(name) }
  for key, value in pairs(more) do o[key] = value end
  return o
end

for key, expected in pairs(arrays) do
  local task, name = key:match "^([%w.]-)%.(%u%w+)$"
  if name then
    test(task .. " with " .. name, function()
      local batch = batch_of({ "a taxi", "bone" }, { "", "a tongue" })
      local o = options_of(name, { num_inference_steps = 5 })
      if task == "text" then
        o.num_inference_steps = 4
      else
        batch.pixel_values = arrays.image
        batch.image_latents =
          pipeline.encode_images(pipeline.params, arrays.image).latent_mean
        o.strength = tonumber(task:match "[%d.]+$" or 0.6)
        if task ~= "image" then batch.mask = arrays.mask end
      end
      local latents = pipeline.generate(pipeline.params, batch, o)
      local off = (latents - expected):abs():max():item() / expected:abs():max():item()
      assert(off <= 1e-4, "off by " .. off .. " of the largest value")
    end)
  end
end

local few = { num_inference_steps = 2, seed = 3, scheduler = "DDPMScheduler" }
local function with(more)
  local o = {}
  for _, keys in ipairs { few, more } do
    for key, value in pairs(keys) do o[key] = value end
  end
  return o
end

test("a seed gives the same picture, a list of prompts several", function()
  local one = pipeline("a taxi", few)
  testing.expect_equal(table.concat(one.shape, " "), ("1 3 %d %d"):format(side, side))
  assert(one:equal(pipeline("a taxi", few)))
  assert(not one:equal(pipeline("a taxi", with { seed = 4 })))
  assert(one:ge(0):all():item() and one:le(1):all():item())
  local steps = {}
  local four = pipeline({ "a taxi", "bone" }, with { num_images_per_prompt = 2,
    negative_prompt = "leg", guidance_rescale = 0.5,
    on_step = function(step, n) steps[#steps + 1] = step .. " of " .. n end })
  testing.expect_equal(four:size(0), 4)
  testing.expect_equal(table.concat(steps, ", "), "1 of 2, 2 of 2")
  local plain = pipeline("a taxi", with { guidance_scale = 1 })
  assert(not plain:equal(one))
  local image = torch.full({ 3, side, side }, 200, { dtype = "uint8" })
  local changed = pipeline("bone", with { image = image, strength = 0.5 })
  testing.expect_equal(#changed.shape, 4)
  local mask = torch.zeros { 1, side, side }
  mask:narrow(2, 0, side / 2):fill_(1)
  testing.expect_equal(pipeline("bone", with { image = image, mask = mask }):size(0), 1)
end)

test("NaN and wrong arguments are errors", function()
  local broken = {}
  for name, part in pairs(pipeline.params) do broken[name] = part end
  broken.unet = {}
  for name, t in pairs(pipeline.params.unet) do broken.unet[name] = t end
  broken.unet["conv_out.bias"] = torch.full_like(broken.unet["conv_out.bias"], 0 / 0)
  local batch = pipeline.tokenize "bone"
  local function generate(more) pipeline.generate(pipeline.params, batch, with(more)) end
  expect_error(function() pipeline.generate(broken, batch, few) end, "NaN after step 1")
  expect_error(function() pipeline.generate(pipeline.params, batch, {}) end, "a seed, or rng")
  expect_error(function() pipeline.generate(pipeline.params, "bone", few) end, "input_ids")
  expect_error(function() generate { height = side - 1 } end, "height: expected a multiple of")
  expect_error(function() generate { num_inference_steps = 0 } end, "num_inference_steps")
  expect_error(function() generate { gidance_scale = 2 } end, "did you mean 'guidance_scale'")
  expect_error(function() generate { output = "png" } end, '"images" or "latents"')
  expect_error(function() generate { latents = torch.zeros { 1, 4, 3, 3 } } end, "latents:")
  expect_error(function() generate { scheduler = "MagicScheduler" } end, "MagicScheduler")
  batch.mask = torch.zeros { 1, 1, side, side }
  expect_error(function() generate {} end, "a mask needs pixel_values")
  batch.mask, batch.pixel_values = nil, torch.zeros { 1, 3, side, side }
  expect_error(function() generate { strength = 0.1 } end, "strength 0.1 of 2 steps leaves none")
  expect_error(function() generate { strength = 2 } end, "from 0 to 1")
  batch.pixel_values = torch.zeros { 1, 3, 2, 2 }
  expect_error(function() generate {} end, "pixel_values: expected", "[1, 3, 2, 2]")
end)

local function rows(prefix, first, last)
  local batch = {}
  for _, name in ipairs { "input_ids", "latents", "noise", "timesteps" } do
    batch[name] = prefix[name]:narrow(0, first, last - first)
  end
  return batch
end

test("losses: weights, velocity, class images and dropped captions", function()
  local rng = redco.Rng(1)
  local ids = pipeline.tokenize { "a taxi", "bone", "leg", "leg" }
  local all = { input_ids = ids.input_ids,
    latents = torch.randn({ 4, 4, 8, 8 }, { generator = rng }),
    noise = torch.randn({ 4, 4, 8, 8 }, { generator = rng }),
    timesteps = torch.tensor({ 10, 300, 600, 990 }, { dtype = "int64" }) }
  local params = pipeline.params
  local scheduler = redco.diffusion.scheduler(pipeline.scheduler_config)
  local noisy = scheduler:add_noise(all.latents, all.noise, all.timesteps)
  local output = pipeline.unet(params.unet, noisy, all.timesteps, pipeline.encode_text(params, ids))
  local each = (output - all.noise):square():mean { 1, 2, 3 }
  local loss, count = pipeline.loss(params, all)
  expect_close(loss, each:mean())
  testing.expect_equal(count, 4)
  local share = scheduler.alphas_cumprod:index_select(0, all.timesteps)
  local snr = share / (1 - share)
  expect_close(pipeline.loss(params, all, { min_snr_gamma = 5 }),
    (each * snr:clamp(nil, 5) / snr):mean())
  local batch = rows(all, 0, 2)
  batch.prior = rows(all, 2, 4)
  expect_close(pipeline.loss(params, batch, { prior_weight = 0.5 }),
    each:narrow(0, 0, 2):mean() + 0.5 * each:narrow(0, 2, 2):mean())
  local empty = pipeline.tokenize { "", "", "", "" }
  local without = rows(all, 0, 4)
  without.input_ids = empty.input_ids
  expect_close(pipeline.loss(params, all, { train = true, caption_dropout = 1, rng = rng }),
    pipeline.loss(params, without))
  local kept = pipeline.scheduler_config
  pipeline.scheduler_config = { prediction_type = "v_prediction" }
  for key, value in pairs(kept) do
    if key ~= "prediction_type" then pipeline.scheduler_config[key] = value end
  end
  expect_close(pipeline.loss(params, all), (output
    - scheduler:get_velocity(all.latents, all.noise, all.timesteps)):square():mean())
  pipeline.scheduler_config = { _class_name = "FlowMatchEulerDiscreteScheduler", shift = 3 }
  assert(pipeline.loss(params, all):item() > 0)
  expect_error(function() pipeline.loss(params, all, { min_snr_gamma = 5 }) end, "flow matching")
  pipeline.scheduler_config = kept
end)

test("losses: of pictures, of their cached latents, and without either", function()
  local batch = pipeline.tokenize { "a taxi", "bone" }
  batch.pixel_values = arrays.image
  local function loss_of(given)
    return (pipeline.loss(pipeline.params, given, { rng = redco.Rng(5), noise_offset = 0.1 }))
  end
  local loss = loss_of(batch)
  local cached = pipeline.encode_images(pipeline.params, arrays.image)
  cached.input_ids = batch.input_ids
  expect_close(loss_of(cached), loss)
  cached.encoder_hidden_states, cached.input_ids =
    pipeline.encode_text(pipeline.params, batch), nil
  expect_close(loss_of(cached), loss)
  expect_error(function() pipeline.loss(pipeline.params, cached) end, "it needs rng")
  expect_error(function()
    pipeline.loss(pipeline.params, { input_ids = batch.input_ids }, { rng = redco.Rng(1) })
  end, "neither pixel_values nor latents")
  expect_error(function()
    pipeline.loss(pipeline.params, cached,
      { rng = redco.Rng(1), train = true, caption_dropout = 1 })
  end, "caption_dropout needs input_ids")
end)

testing.finish()
