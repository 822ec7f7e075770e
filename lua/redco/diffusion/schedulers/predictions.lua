--- Computes the clean sample x0 and the noise from a model's output, by prediction_type. A sample
--- is alpha * x0 + sigma * noise.
local fail = require "redco.fail"
local torch = require "redco.torch"

local predictions = {}

local clean = {
  epsilon = function(output, sample, alpha, sigma) return (sample - sigma * output) / alpha end,
  sample = function(output) return output end,
  v_prediction = function(output, sample, alpha, sigma) return alpha * sample - sigma * output end,
}

local noise = {
  epsilon = function(output) return output end,
  sample = function(output, sample, alpha, sigma) return (sample - alpha * output) / sigma end,
  v_prediction = function(output, sample, alpha, sigma) return alpha * output + sigma * sample end,
}

local function choose(functions, scheduler)
  local kind = scheduler.config.prediction_type
  return functions[kind] or fail("%s: prediction_type: '%s' is not supported by this class",
    scheduler.name, kind)
end

--- Returns x0.
function predictions.clean(scheduler, output, sample, alpha, sigma)
  return choose(clean, scheduler)(output, sample, alpha, sigma)
end

--- Returns the noise.
function predictions.noise(scheduler, output, sample, alpha, sigma)
  return choose(noise, scheduler)(output, sample, alpha, sigma)
end

--- Returns x0 where a sample is x0 + sigma * noise.
function predictions.clean_of_sigma(scheduler, output, sample, sigma)
  local kind = scheduler.config.prediction_type
  if kind == "epsilon" then return sample - sigma * output end
  if kind == "sample" then return output end
  if kind ~= "v_prediction" then
    fail("%s: prediction_type: '%s' is not supported by this class", scheduler.name, kind)
  end
  return output * (-sigma / math.sqrt(sigma ^ 2 + 1)) + sample / (sigma ^ 2 + 1)
end

--- Limits x0 as the configuration says: by clipping, or by each example's own quantile
--- (arXiv 2205.11487).
function predictions.limited(c, x0)
  if c.thresholding then
    local flat = x0:reshape { x0:size(0), -1 }
    local limit = torch.quantile(flat:abs(), c.dynamic_thresholding_ratio, 1, true)
      :clamp(1, c.sample_max_value)
    return (torch.minimum(torch.maximum(flat, -limit), limit) / limit):reshape(x0.shape)
  end
  if c.clip_sample then return x0:clamp(-c.clip_sample_range, c.clip_sample_range) end
  return x0
end

return predictions
