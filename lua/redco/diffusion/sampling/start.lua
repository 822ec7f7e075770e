--- The latents with which sampling starts: noise, or the latents of a picture with noise. For
--- inpainting, also the latents and the mask of the parts of the picture to keep.
local fail = require "redco.fail"
local torch = require "redco.torch"

local start = {}

--- Returns the pixels of one latent, across and down.
function start.scale(pipeline) return 2 ^ (#pipeline.vae.config.block_out_channels - 1) end

--- Returns {channels, patch, sample_size} of the latents of what removes noise: `patch` divides
--- their height and width.
function start.latents(pipeline)
  local c, family = pipeline.denoiser.config, pipeline.denoiser.family
  if family.latents then return family.latents(c) end
  return { channels = c.in_channels, patch = c.patch_size or 1, sample_size = c.sample_size }
end

--- Returns the output of a model without the variance that some predict after the noise (a DiT): as
--- in diffusers, it is not used.
function start.without_variance(pipeline, output)
  local c = pipeline.denoiser.config
  if c.out_channels ~= 2 * c.in_channels then return output end
  return output:narrow(1, 0, c.in_channels)
end

-- Draws [pictures, channels, height, width] numbers, split over the processes as `states` are.
local function draws(states, pictures, shape, dtype, generator)
  local row = states:narrow(0, 0, pictures)
  while row:dim() > 1 do row = row:select(-1, 0) end
  row = row:to(dtype):view { -1, 1, 1, 1 }
  return torch.empty_like(row:expand(pictures, shape[1], shape[2], shape[3]):contiguous())
    :normal_(0, 1, { generator = generator })
end

local function repeated(t, n) return n > 1 and t:repeat_interleave(n, 0) or t end

-- Draws from the autoencoder's distribution of the latents of images [B, 3, H, W].
local function encoded(pipeline, params, images, draw)
  local c = pipeline.vae.config
  local mean, logvar = pipeline.vae.encode(params.vae, images)
  return (mean + (logvar / 2):exp() * draw(mean) - (c.shift_factor or 0)) * c.scaling_factor
end

local function check_images(where, images, channels, height, width)
  if not torch.is_tensor(images) or images:dim() ~= 4 or images:size(1) ~= channels
    or images:size(2) ~= height or images:size(3) ~= width or not images.dtype:find "float" then
    fail("pipeline.generate: %s: expected floating-point [batch, %d, %d, %d], got %s", where,
      channels, height, width, torch.is_tensor(images)
        and ("%s [%s]"):format(images.dtype, table.concat(images.shape, ", "))
        or "a " .. type(images))
  end
end

--- The number of the first timestep, counted from 0: `strength` of all steps are done.
local function first_timestep(scheduler, o, strength, starts_earlier)
  if type(strength) ~= "number" or strength < 0 or strength > 1 then
    fail("pipeline.generate: strength: expected a number from 0 to 1, got %s", strength)
  end
  local n = o.num_inference_steps
  local done = math.min(n * strength, n)
  local left = starts_earlier and math.floor(n - done) or n - math.floor(done)
  if left == n then
    fail("pipeline.generate: strength %g of %d steps leaves none to do", strength, n)
  end
  return left * (scheduler.class.calls_per_step or 1)
end

--- Returns {latents, first, kept, mask, extra}: the latents to start from, the number of the first
--- timestep, and of inpainting the latents to keep, where to change them (1) or not, and channels
--- that are added to the UNet's input.
function start.of(pipeline, params, scheduler, batch, states, pictures, o)
  local n, in_channels = o.num_images_per_prompt, start.latents(pipeline).channels
  local dtype = states.dtype:find "float" and states.dtype
    or params[pipeline.kind.model]["pos_embed.proj.weight"].dtype
  local channels = pipeline.vae.config.latent_channels
  local scale = start.scale(pipeline)
  local shape = { channels, o.height / scale, o.width / scale }
  local function draw() return draws(states, pictures, shape, dtype, o.rng) end
  local result = { first = 0 }
  local images = batch.pixel_values
  if images then
    check_images("pixel_values", images, 3, o.height, o.width)
    images = repeated(images, n)
    result.kept = batch.image_latents and repeated(batch.image_latents, n)
      or encoded(pipeline, params, images, draw)
    result.first = first_timestep(scheduler, o, o.strength or (batch.mask and 1 or 0.8),
      pipeline.kind.starts_earlier)
  elseif batch.mask then
    fail "pipeline.generate: a mask needs pixel_values, the picture to change"
  end
  local noise = o.latents and o.latents:to(dtype) or draw()
  if o.latents then check_images("latents", o.latents, unpack(shape)) end
  if result.kept and not (batch.mask and result.first == 0) then
    scheduler:set_begin_index(result.first)
    result.latents = scheduler:add_noise(result.kept, noise, scheduler.timesteps[result.first + 1])
  else
    result.latents = noise * scheduler.init_noise_sigma
  end
  result.noise = noise
  if batch.mask then
    check_images("mask", batch.mask, 1, o.height, o.width)
    local mask = repeated(batch.mask, n):ge(0.5):to(dtype)
    result.mask = torch.upsample_nearest2d(mask, { shape[2], shape[3] })
    if in_channels == 2 * channels + 1 then
      local rest = encoded(pipeline, params, images * (1 - mask), draw)
      result.extra = torch.cat({ result.mask, rest }, 1)
      result.mask = nil
    end
  end
  local expected = channels + (result.extra and channels + 1 or 0)
  if in_channels ~= expected then
    fail("pipeline.generate: the %s takes %d channels, this needs one of %d%s",
      pipeline.denoiser.family.class_name, in_channels,
      expected, in_channels == 2 * channels + 1 and ": it is for inpainting, give a mask" or "")
  end
  if not batch.mask then result.kept = nil end
  return result
end

return start
