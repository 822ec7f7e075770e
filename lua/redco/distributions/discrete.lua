--- Categorical and Bernoulli distributions.
local arguments = require "redco.arguments"
local distribution = require "redco.distributions.distribution"
local fail = require "redco.fail"
local registry = require "redco.registry"
local torch = require "redco.torch"

local discrete = {}

local function all_but_last(shape)
  local sizes = {}
  for i = 1, #shape - 1 do sizes[i] = shape[i] end
  return sizes
end

-- Probabilities near 0 are clamped, so that their logarithm is finite, as in PyTorch.
local function clamped(probs)
  local eps = distribution.eps[probs.dtype]
  return probs:clamp(eps, 1 - eps)
end

-- Roughly the lowest number of a dtype; all other dtypes can hold -3e38.
local lowest = { float16 = -65504 }

local categorical = arguments("distributions.Categorical", {}, { "probs", "logits" })
discrete.Categorical = registry.define("redco.distributions.Categorical", [[
Categorical{probs [..., classes] = nil, logits [..., classes] = nil} -> Distribution
Distributions over classes, from 0, by probabilities or by logits, of which one must be given.
`probs` are divided by their sum. A draw is an int64 tensor.]], function(given)
  local where = "distributions.Categorical"
  local values, name = distribution.one_of(where, categorical(given))
  if values:dim() == 0 or values:size(-1) == 0 then
    fail("%s: %s: expected a tensor [..., classes], got [%s]", where, name,
      table.concat(values.shape, ", "))
  end
  local log_probs
  if name == "probs" then
    log_probs = clamped(values / values:sum({ -1 }, true)):log()
  else
    log_probs = values:log_softmax(-1)
  end
  local probs = name == "probs" and values / values:sum({ -1 }, true) or log_probs:exp()

  return distribution.new {
    name = "Categorical", batch_shape = all_but_last(values.shape), event_shape = {},
    log_probs = log_probs, probs = probs,
    -- The argmax of logits + Gumbel noise: the noise of an element depends only on its place.
    draw = function(sample_shape, rng)
      local wide = log_probs.dtype == "float64" and log_probs or log_probs:float()
      local noise = distribution.empty(wide, sample_shape):exponential_(1, { generator = rng })
      -- A probability of 0 is never drawn, though its logarithm is clamped.
      local scores = wide:masked_fill(probs:eq(0), -math.huge) - noise:log()
      return scores:argmax(-1)
    end,
    density = function(value)
      local index = value:long():unsqueeze(-1)
      local shape = { unpack(value.shape) }
      shape[#shape + 1] = log_probs:size(-1)
      return log_probs:expand(shape):gather(-1, index):squeeze(-1)
    end,
    entropy_of = function()
      return -(probs * log_probs:clamp(lowest[log_probs.dtype] or -3e38)):sum(-1)
    end,
    mode_of = function() return probs:argmax(-1) end,
  }
end)

local bernoulli = arguments("distributions.Bernoulli", {}, { "probs", "logits" })
discrete.Bernoulli = registry.define("redco.distributions.Bernoulli", [[
Bernoulli{probs = nil, logits = nil} -> Distribution
Distributions of 0 and 1, by the probabilities of 1 or by their logits, of which one must be given.
A draw has the dtype of the parameters.]], function(given)
  local values, name = distribution.one_of("distributions.Bernoulli", bernoulli(given))
  local logits, probs
  if name == "probs" then
    local inside = clamped(values)
    logits, probs = inside:log() - (-inside):log1p(), values
  else
    logits, probs = values, values:sigmoid()
  end
  -- - (value log(p) + (1 - value) log(1 - p))
  local function cost(value)
    local at, target = unpack(torch.broadcast_tensors { logits, value:to(logits.dtype) })
    return torch.binary_cross_entropy_with_logits(at, target, nil, nil, 0)
  end

  return distribution.new {
    name = "Bernoulli", batch_shape = values.shape, event_shape = {},
    logits = logits, probs = probs, is_clamped = name == "probs",
    draw = function(sample_shape, rng)
      local wide = probs.dtype == "float64" and probs or probs:float()
      return distribution.empty(wide, sample_shape):uniform_(0, 1, { generator = rng })
        :lt(wide):to(probs.dtype)
    end,
    density = function(value) return -cost(value) end,
    entropy_of = function() return cost(probs) end,
    mean_of = function() return probs end,
    variance_of = function() return probs * (1 - probs) end,
    mode_of = function() return probs:gt(0.5):to(probs.dtype) end,
  }
end)

return discrete
