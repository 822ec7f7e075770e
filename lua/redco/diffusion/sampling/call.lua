--- pipeline(prompts, options): pictures for prompts in one call, with a progress line.
local arguments = require "redco.arguments"
local fail = require "redco.fail"
local ffi = require "ffi"
local sampling = require "redco.diffusion.sampling"
local torch = require "redco.torch"

ffi.cdef "int isatty(int);"

local own = { negative_prompt = true, image = true, mask = true }

-- Checks the names of sampling's options there; here are those that only this call has.
local options = arguments("pipeline", {}, { "negative_prompt", "image", "mask",
  "num_inference_steps", "guidance_scale", "true_cfg_scale", "guidance_rescale",
  "num_images_per_prompt", "clip_skip", "eta", "output", "height", "width", "strength", "seed",
  "rng", "latents", "scheduler", "on_step" })

-- A progress line on a terminal.
local function show_step(step, n)
  local width = 30
  local done = math.floor(width * step / n)
  io.stderr:write(("\rstep %d of %d [%s%s]%s"):format(step, n, ("#"):rep(done),
    ("."):rep(width - done), step == n and "\n" or ""))
  io.stderr:flush()
end

-- Returns images [n, channels, H, W] from 0 to 1 of uint8 or floating-point ones [channels, H, W]
-- or [B, channels, H, W].
local function as_batch(name, images, channels, n)
  if not torch.is_tensor(images) or images:dim() < 3 or images:dim() > 4
    or images:size(-3) ~= channels and images:size(-3) ~= 3 then
    fail("pipeline: %s: expected an image [%d, height, width] or a batch, got %s", name, channels,
      torch.is_tensor(images) and "[" .. table.concat(images.shape, ", ") .. "]"
        or "a " .. type(images))
  end
  if images:dim() == 3 then images = images:unsqueeze(0) end
  if images.dtype == "uint8" then images = images:float() / 255 end
  if images:size(1) ~= channels then images = images:mean({ 1 }, true) end  -- a mask as a picture
  if images:size(0) == 1 then images = images:expand(n, -1, -1, -1) end
  if images:size(0) ~= n then
    fail("pipeline: %s: expected 1 or %d, as there are prompts, got %d", name, n, images:size(0))
  end
  return images
end

-- The tokens of `prompts`, and of the negative ones under their names.
local function batch_of(pipeline, prompts, negative)
  local batch = pipeline.tokenize(prompts)
  local n = (batch.input_ids or batch.class_labels):size(0)
  if negative then
    local list = negative
    if type(negative) == "string" then
      list = {}
      for i = 1, n do list[i] = negative end
    end
    if type(list) ~= "table" or #list ~= n then
      fail("pipeline: negative_prompt: expected one or %d, as there are prompts, got %s", n,
        type(list) == "table" and #list or type(list))
    end
    for name, ids in pairs(pipeline.tokenize(list)) do batch["negative_" .. name] = ids end
  end
  return batch, n
end

return function(pipeline, prompts, given)
  local o = options(given)
  local passed = { seed = not o.rng and (o.seed or 0) or nil }
  for name, value in pairs(o) do
    if not own[name] then passed[name] = value end
  end
  if not passed.on_step and ffi.C.isatty(2) == 1 then passed.on_step = show_step end
  local batch, n = batch_of(pipeline, prompts, o.negative_prompt)
  if o.image then
    local images = as_batch("image", o.image, 3, n)
    passed.height, passed.width = images:size(2), images:size(3)
    batch.pixel_values = images * 2 - 1
  end
  if o.mask then batch.mask = as_batch("mask", o.mask, 1, n) end
  return sampling.generate(pipeline, pipeline.params, batch, passed)
end
