--- Epsilon by the distribution of the privacy loss, which is tighter than by Renyi divergences: the
--- loss of a run is the sum of those of its steps (Gopi et al., arXiv 2106.02848).
local fail = require "redco.fail"
local mechanism = require "redco.privacy.mechanism"
local renyi = require "redco.privacy.renyi"
local torch = require "redco.torch"

local epsilon_error, most_points = 0.01, 2 ^ 26

--- Returns a bound of the loss that a run exceeds with too small a probability to matter (remark
--- 5.6).
local function highest_loss(phases, n_steps, delta_error)
  local highest = math.max(epsilon_error, renyi(phases, delta_error / 4))
  for _, phase in ipairs(phases) do
    local one = { noise_multiplier = phase.noise_multiplier, sample_rate = phase.sample_rate,
      steps = 1 }
    highest = math.max(highest, renyi({ one }, delta_error / (8 * n_steps)))
  end
  return highest + 3
end

--- Returns the probabilities of the loss of one step at multiples of `width` from -n/2 on, and the
--- mean loss that rounding to them removes.
local function distribution(phase, width, n)
  local sigma, q = phase.noise_multiplier, phase.sample_rate
  local places = torch.arange(n + 1, { dtype = "float64" }) - n / 2
  local above = mechanism.survival(sigma, q, (places - 0.5) * width)
  local chances = above:narrow(0, 0, n) - above:narrow(0, 1, n)
  chances = chances / chances:sum()
  local loss, log_weight = mechanism.integral(sigma, q, 2)
  local weight = (log_weight + loss):exp()
  local mean = torch.where(weight:gt(0), weight * loss, 0):sum()
  return chances, (mean - (chances * places:narrow(0, 0, n)):sum() * width):item()
end

--- Returns the smallest loss at which the run is (loss, delta)-private.
local function smallest(losses, chances, delta)
  local function from_above(x) return x:flip { 0 }:cumsum(0):flip { 0 } end
  local first, second = from_above(chances), from_above(chances * (-losses):exp())
  local place = (first - losses:exp() * second):le(delta):int():argmax():item()
  return math.log((first[place]:item() - delta) / second[place]:item())
end

--- Returns an upper bound of epsilon that is at most twice 0.01 above the lowest one.
return function(phases, delta)
  local delta_error, n_steps = delta / 1000, 0
  for _, phase in ipairs(phases) do n_steps = n_steps + phase.steps end
  local width = epsilon_error / math.sqrt(n_steps * math.log(12 / delta_error) / 2)
  local half = math.ceil(highest_loss(phases, n_steps, delta_error) / width)
  if 2 * half > most_points then
    fail("redco.privacy: the accountant \"prv\" would need %.0f points for %.0f steps of such high "
      .. "privacy loss: use accountant = \"rdp\", or more noise", 2 * half, n_steps)
  end
  local transformed, shift
  for _, phase in ipairs(phases) do
    local chances, removed = distribution(phase, width, 2 * half)
    local power = torch.fft.rfft(chances):pow(phase.steps)
    transformed = transformed and transformed * power or power
    shift = (shift or 0) + phase.steps * removed
  end
  -- A sum of n places counts from -n/2 * `half`; the transform wraps it around 2 * `half` places.
  local chances = torch.fft.irfft(transformed):roll { n_steps % 2 == 0 and half or 0 }
  local losses = torch.arange(half, { dtype = "float64" }) * width + shift
  return math.max(0, smallest(losses, chances:narrow(0, half, half), delta - delta_error)
    + epsilon_error)
end
