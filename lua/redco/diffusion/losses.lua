--- The loss of training a UNet or a transformer to remove noise.
local arguments = require "redco.arguments"
local conditions = require "redco.diffusion.sampling.conditions"
local fail = require "redco.fail"
local new_scheduler = require "redco.diffusion.schedulers"
local start = require "redco.diffusion.sampling.start"
local torch = require "redco.torch"

local losses = {}

local options = arguments("pipeline.loss", {
  train = false, prior_weight = 1, caption_dropout = 0, noise_offset = 0, clip_skip = 0,
  timestep_sampling = "uniform", logit_mean = 0, logit_std = 1, guidance_scale = 3.5,
}, { "rng", "min_snr_gamma" })

-- Returns one float32 number for each example: uniform in [0, 1), or normal if method is "normal_".
-- The numbers are split over the processes like `t` [B, ...].
local function numbers(t, rng, method)
  local row = t:detach()
  while row:dim() > 1 do row = row:select(-1, 0) end
  row = torch.empty_like(row, { dtype = "float32" })
  return row[method or "uniform_"](row, 0, 1, { generator = rng })
end

local function factors(values, like, dtype)
  local shape = { -1 }
  for i = 2, like:dim() do shape[i] = 1 end
  return values:to(dtype or like.dtype):view(shape)
end

local function noise_like(t, rng) return torch.empty_like(t):normal_(0, 1, { generator = rng }) end

local function rng_of(o)
  return o.rng or fail "pipeline.loss: it needs rng, the Generator that loss_fn is given"
end

--- Returns {latent_mean, latent_std} of images [B, 3, H, W] from -1 to 1: the distribution of their
--- latents, scaled as the model sees them. A Predictor computes them once for all epochs.
function losses.encode_images(pipeline, params, images)
  return torch.no_grad(function()
    local c = pipeline.vae.config
    local mean, logvar = pipeline.vae.encode(params.vae, images)
    return { latent_mean = (mean - (c.shift_factor or 0)) * c.scaling_factor,
      latent_std = (logvar / 2):exp() * c.scaling_factor }
  end)
end

-- Returns the latents of a batch: given, or drawn from a given distribution or that of
-- pixel_values.
local function latents_of(pipeline, params, batch, o)
  if batch.latents then return batch.latents end
  local known = batch
  if not batch.latent_mean then
    if not batch.pixel_values then
      fail "pipeline.loss: the batch has neither pixel_values nor latents nor latent_mean"
    end
    known = losses.encode_images(pipeline, params, batch.pixel_values)
  end
  return known.latent_mean + known.latent_std * noise_like(known.latent_mean, rng_of(o))
end

-- Replaces some prompts of the batch with the empty prompt, or some classes with no class.
local function dropped(pipeline, batch, o)
  if not o.train or o.caption_dropout == 0 then return batch end
  local result, is_kept = {}, nil
  for key, value in pairs(batch) do result[key] = value end
  for name, empty in pairs(pipeline.kind.says.empty(pipeline, batch)) do
    is_kept = is_kept or numbers(batch[name], rng_of(o)):ge(o.caption_dropout)
    result[name] = torch.where(factors(is_kept, batch[name], "bool"), batch[name],
      empty:to(batch[name].device))
  end
  return result
end

-- Returns the conditions of the prompts. Hidden states in the batch are not computed again.
local function conditions_of(pipeline, params, batch, o, latents)
  local states, pooled = batch.encoder_hidden_states, batch.text_embeds
  if states then
    if o.train and o.caption_dropout > 0 then
      fail "pipeline.loss: caption_dropout needs input_ids, not encoder_hidden_states"
    end
  else
    states, pooled = pipeline.kind.says.encode(pipeline, params, dropped(pipeline, batch, o),
      { train = o.train, rng = o.rng, clip_skip = o.clip_skip })
  end
  local scale = 2 ^ (#pipeline.vae.config.block_out_channels - 1)
  return states, conditions.call(pipeline, pooled, batch.time_ids, latents:size(2) * scale,
    latents:size(3) * scale, o.guidance_scale)
end

-- The weights of arXiv 2303.09556 by prediction_type, of the ratio of signal to noise.
local snr_weights = {
  epsilon = function(snr, gamma) return snr:clamp(nil, gamma) / snr end,
  v_prediction = function(snr, gamma) return snr:clamp(nil, gamma) / (snr + 1) end,
  sample = function(snr, gamma) return snr:clamp(nil, gamma) end,
}

-- Targets by prediction_type, of the factors of signal and noise.
local targets = {
  epsilon = function(_, noise) return noise end,
  v_prediction = function(x, noise, alpha, sigma) return alpha * noise - sigma * x end,
  sample = function(x) return x end,
}

-- Flow matching: the model predicts noise - x.
local function flow_target(x, noise) return noise - x end

-- Returns the factors of signal and noise at the examples' timesteps, the timesteps as the model
-- sees them, and the function that computes the target.
local function noising(scheduler, places, latents)
  local device = { dtype = "float32", device = latents.device }
  if scheduler.class.has_flow then
    local all = torch.tensor(scheduler.training_sigmas, device)
    local sigma = all:index_select(0, places)
    return factors(1 - sigma, latents), factors(sigma, latents),
      sigma * scheduler.config.num_train_timesteps, flow_target
  end
  local kind = scheduler.config.prediction_type
  local share = scheduler.alphas_cumprod:to(latents.device):index_select(0, places)
  return factors(share:sqrt(), latents), factors((1 - share):sqrt(), latents), places,
    targets[kind] or fail("pipeline.loss: prediction_type '%s' is not supported", kind), share
end

-- By timestep_sampling: functions that draw the index of a timestep for each example.
local draws_of_timesteps = {
  uniform = function(latents, count, o)
    return (numbers(latents, rng_of(o)) * count):floor():clamp(0, count - 1):long()
  end,
  -- Most are in the middle (arXiv 2403.03206). As in diffusers, a mean above 0 is for less noise.
  logit_normal = function(latents, count, o)
    local normal = numbers(latents, rng_of(o), "normal_")
    local share = torch.sigmoid(normal * o.logit_std + o.logit_mean)
    return count - 1 - (share * count):floor():clamp(0, count - 1):long()
  end,
}

local function check_options(scheduler, o)
  if not draws_of_timesteps[o.timestep_sampling] then
    fail("pipeline.loss: timestep_sampling: expected 'uniform' or 'logit_normal', got '%s'",
      o.timestep_sampling)
  end
  if o.min_snr_gamma and scheduler.class.has_flow then
    fail "pipeline.loss: min_snr_gamma is not for flow matching"
  end
end

-- The mean loss of a batch without its class images.
local function plain(pipeline, scheduler, params, batch, o)
  local latents = latents_of(pipeline, params, batch, o)
  local noise = batch.noise or noise_like(latents, rng_of(o))
  if o.noise_offset > 0 then
    noise = noise + o.noise_offset
      * noise_like(latents:narrow(2, 0, 1):narrow(3, 0, 1):contiguous(), rng_of(o))
  end
  local places = batch.timesteps
    or draws_of_timesteps[o.timestep_sampling](latents, scheduler.config.num_train_timesteps, o)
  local alpha, sigma, timesteps, target, share = noising(scheduler, places, latents)
  local states, call = conditions_of(pipeline, params, batch, o, latents)
  call.train, call.rng = o.train, o.rng
  local output = start.without_variance(pipeline, pipeline.denoiser(params[pipeline.kind.model],
    alpha * latents + sigma * noise, timesteps, states, call))
  local off = (output.dtype == "float64" and output or output:float())
    - target(latents, noise, alpha, sigma):to(output.dtype)
  local each = off:square():mean { 1, 2, 3 }
  if o.min_snr_gamma then
    local snr = share / (1 - share)
    each = each * snr_weights[scheduler.config.prediction_type](snr, o.min_snr_gamma)
  end
  return each:mean()
end

--- pipeline.loss(params, batch, options) -> loss, number of examples.
function losses.loss(pipeline, params, batch, given)
  local o = options(given)
  -- The loss only reads tables of the scheduler, so calls share it until the configuration changes.
  local scheduler = pipeline.training_scheduler
  if not scheduler or scheduler.source ~= pipeline.scheduler_config then
    scheduler = new_scheduler(pipeline.scheduler_config)
    scheduler.source, pipeline.training_scheduler = pipeline.scheduler_config, scheduler
  end
  check_options(scheduler, o)
  local loss = plain(pipeline, scheduler, params, batch, o)
  if batch.prior then
    loss = loss + o.prior_weight * plain(pipeline, scheduler, params, batch.prior, o)
  end
  local first = batch.input_ids or batch.encoder_hidden_states or batch.class_labels
  return loss, first:size(0)
end

return losses
