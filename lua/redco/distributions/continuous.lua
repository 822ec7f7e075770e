--- Normal and tanh-normal distributions.
local distribution = require "redco.distributions.distribution"
local registry = require "redco.registry"
local torch = require "redco.torch"

local continuous = {}

local half_log_2_pi = 0.5 * math.log(2 * math.pi)

local function normal_parts(where, loc, scale)
  loc, scale = distribution.broadcast(where, { "loc", "scale" }, loc, scale)
  local parts = { loc = loc, scale = scale }

  function parts.draw(sample_shape, rng)
    local noise = distribution.empty(loc, sample_shape):normal_(0, 1, { generator = rng })
    return loc + noise * scale
  end

  function parts.density(value)
    return -0.5 * ((value - loc) / scale):square() - scale:log() - half_log_2_pi
  end

  return parts
end

continuous.Normal = registry.define("redco.distributions.Normal", [[
Normal(loc: number or Tensor, scale: number or Tensor) -> Distribution
Normal distributions with mean `loc` and standard deviation `scale`, tensors or numbers that are
broadcast to one shape. `scale` must be positive, which is not checked.]], function(loc, scale)
  local parts = normal_parts("distributions.Normal", loc, scale)
  return distribution.new {
    name = "Normal", batch_shape = parts.loc.shape, event_shape = {}, is_differentiable = true,
    loc = parts.loc, scale = parts.scale, draw = parts.draw, density = parts.density,
    entropy_of = function() return 0.5 + half_log_2_pi + parts.scale:log() end,
    mean_of = function() return parts.loc end,
    variance_of = function() return parts.scale:square() end,
    mode_of = function() return parts.loc end,
  }
end)

-- log |d tanh(x) / dx| = log(1 - tanh(x)^2), without cancellation.
local function log_slope(x)
  return 2 * (math.log(2) - x - torch.softplus(-2 * x))
end

continuous.TanhNormal = registry.define("redco.distributions.TanhNormal", [[
TanhNormal(loc: number or Tensor, scale: number or Tensor) -> Distribution
The distribution of tanh(x) for x of Normal(loc, scale), with values in (-1, 1): the policy of soft
actor-critic (Haarnoja et al., 2018). Draw and score with `rsample_and_log_prob`. log_prob of given
values clamps them to the numbers next to -1 and 1, where atanh is finite.]], function(loc, scale)
  local parts = normal_parts("distributions.TanhNormal", loc, scale)

  local function density_of(x) return parts.density(x) - log_slope(x) end

  return distribution.new {
    name = "TanhNormal", batch_shape = parts.loc.shape, event_shape = {},
    is_differentiable = true, loc = parts.loc, scale = parts.scale,
    draw = function(...) return parts.draw(...):tanh() end,
    draw_and_log_prob = function(...)
      local x = parts.draw(...)
      return x:tanh(), density_of(x)
    end,
    density = function(value)
      local limit = 1 - distribution.eps[value.dtype] / 2
      return density_of(value:clamp(-limit, limit):atanh())
    end,
    mode_of = function() return parts.loc:tanh() end,
  }
end)

return continuous
