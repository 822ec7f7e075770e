--- The Gaussian mechanism on a Poisson sample: the sum of the clipped gradients of a random part of
--- the examples, plus noise.
local torch = require "redco.torch"

local mechanism = {}

local f64 = { dtype = "float64" }

--- Returns the privacy loss at points of the mechanism's output, and the logarithm of each point's
--- weight in an integral over the output without one of the examples. `highest` is the highest
--- order of the moments that the integral is for. The output is in units of the clipping norm.
---
--- The moment of order a is the integral of N(x; 0, sigma) exp(loss(x))^a, where exp(loss(x)) is
--- (1 - q) + q exp((2 x - 1) / (2 sigma^2)) (Mironov et al., arXiv 1908.10530, section 3.3). The
--- integrand is smooth and vanishes at both ends, so that the trapezoidal rule converges
--- exponentially.
function mechanism.integral(sigma, q, highest)
  local step = sigma / 8 * math.max(math.min(1, math.pi * sigma), 1 / 4)
  local x = torch.arange(-math.ceil(12 * sigma / step),
    math.ceil((highest + 12 * sigma) / step), f64) * step
  local log_weight = (x / sigma):square() / -2 + math.log(step / sigma / math.sqrt(2 * math.pi))
  local loss = torch.logaddexp(torch.full_like(x, math.log(1 - q)),
    (x * 2 - 1) / (2 * sigma ^ 2) + math.log(q))
  return loss, log_weight
end

--- Returns the probability of a privacy loss above each of `losses` (Gopi et al., arXiv 2106.02848,
--- appendix B).
function mechanism.survival(sigma, q, losses)
  local within = ((q - 1) * (-losses):clamp_max(700):exp()):clamp_min(-1)
  local z = (losses + within:log1p() - math.log(q)) * sigma ^ 2  -- the output, less 1/2
  local function above(center)
    return torch.special.erfc((z + center) / (math.sqrt(2) * sigma)) / 2
  end
  return above(-0.5) * q + above(0.5) * (1 - q)
end

return mechanism
