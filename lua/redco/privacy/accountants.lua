--- How much privacy a run costs, and how much noise a budget needs.
local arguments = require "redco.arguments"
local fail = require "redco.fail"
local registry = require "redco.registry"

local accountants = {
  prv = require "redco.privacy.loss_distribution",
  rdp = require "redco.privacy.renyi",
}

local least_noise, most_noise = 0.01, 1e6

local function is_number(value)
  return type(value) == "number" and value == value and math.abs(value) < math.huge
end

--- The condition that each argument must meet: its text, and a function that checks it.
local checks = {
  noise_multiplier = { "a number of at least 0", function(x) return is_number(x) and x >= 0 end },
  sample_rate = { "above 0 and at most 1: expected batch size divided by number of examples",
    function(x) return is_number(x) and x > 0 and x <= 1 end },
  steps = { "a number of steps", function(x) return is_number(x) and x >= 0 and x % 1 == 0 end },
  delta = { "between 0 and 1, both excluded",
    function(x) return is_number(x) and x > 0 and x < 1 end },
  target_epsilon = { "a number above 0", function(x) return is_number(x) and x > 0 end },
  epsilon_tolerance = { "a number above 0", function(x) return is_number(x) and x > 0 end },
  accountant = { "one of \"prv\" and \"rdp\"", function(x) return accountants[x] ~= nil end },
}

local function check(where, given, ...)
  for _, name in ipairs { ... } do
    local expected, is_right = unpack(checks[name])
    if not is_right(given[name]) then
      fail("%s: %s = %s is not %s", where, name, given[name], expected)
    end
  end
end

--- Returns the phases that have an effect, or nil if one of them has too little noise for a bound.
local function counted(phases)
  local found = {}
  for _, phase in ipairs(phases) do
    if phase.steps > 0 then
      if phase.noise_multiplier < least_noise then return nil end
      found[#found + 1] = phase
    end
  end
  return found
end

local function epsilon_of(accountant, phases, delta)
  phases = counted(phases)
  if not phases then return math.huge end
  return #phases == 0 and 0 or accountants[accountant](phases, delta)
end

local privacy = {}

local epsilon = arguments("privacy.epsilon", { accountant = "prv" },
  { "noise_multiplier", "sample_rate", "steps", "delta", "earlier" })
privacy.epsilon = registry.define("redco.privacy.epsilon", [[
epsilon{noise_multiplier, sample_rate, steps, delta, accountant = "prv", earlier = nil} -> number
Returns an upper bound of epsilon: training for `steps` steps is (epsilon, delta)-differentially
private, for data sets that differ in one example. Each step must draw every example with
probability sample_rate (`redco.data.poisson_sampler`), clip each example's gradient to a norm, and
add Gaussian noise to their sum, as `redco.privacy.gradients` does. The bounds equal those of
Opacus 1.6.0. Returns 0 for no steps, and math.huge for a noise_multiplier below 0.01.
  noise_multiplier: the standard deviation of the noise, divided by the norm to which gradients are
    clipped
  sample_rate: the expected batch size divided by the number of examples
  delta: the probability with which the bound may fail, less than 1 / the number of examples
  accountant: "prv" composes the distributions of the privacy loss (arXiv 2106.02848) and exceeds
    the smallest epsilon by about 0.02 at most; "rdp" uses Renyi divergences (arXiv 1908.10530),
    which is faster and gives higher bounds
  earlier: a list of {noise_multiplier, sample_rate, steps}, what the examples were used for before,
    with other values]], function(options)
  local o = epsilon(options)
  check("privacy.epsilon", o, "noise_multiplier", "sample_rate", "steps", "delta", "accountant")
  local phases = { o }
  for i, phase in ipairs(o.earlier or {}) do
    local where = ("privacy.epsilon: earlier[%d]"):format(i)
    if type(phase) ~= "table" then fail("%s is a %s, expected a table", where, type(phase)) end
    check(where, phase, "noise_multiplier", "sample_rate", "steps")
    phases[i + 1] = phase
  end
  return epsilon_of(o.accountant, phases, o.delta)
end)

local noise_multiplier = arguments("privacy.noise_multiplier",
  { accountant = "prv", epsilon_tolerance = 0.01 },
  { "target_epsilon", "delta", "sample_rate", "steps" })
privacy.noise_multiplier = registry.define("redco.privacy.noise_multiplier", [[
noise_multiplier{target_epsilon, delta, sample_rate, steps, accountant = "prv", epsilon_tolerance = 0.01} -> number
Returns a noise multiplier with which `steps` steps cost at most target_epsilon, and at least
target_epsilon - epsilon_tolerance, by `epsilon`. Raises an error if no noise reaches the target.
  target_epsilon: the privacy budget
  epsilon_tolerance: how much of the budget may remain]], function(options)
  local o = noise_multiplier(options)
  local where = "privacy.noise_multiplier"
  check(where, o, "target_epsilon", "delta", "sample_rate", "steps", "accountant",
    "epsilon_tolerance")
  if o.steps == 0 then return 0 end
  local function spent(sigma)
    return epsilon_of(o.accountant,
      { { noise_multiplier = sigma, sample_rate = o.sample_rate, steps = o.steps } }, o.delta)
  end
  -- The search of Opacus, for equal results.
  local low, high, reached = 0, 10, math.huge
  while reached > o.target_epsilon do
    if high > most_noise then
      fail("%s: target_epsilon = %g cannot be reached: noise_multiplier = %g still costs epsilon = "
        .. "%.3g by the accountant \"%s\". Its bounds do not become lower; use a higher target%s",
        where, o.target_epsilon, high, reached, o.accountant,
        o.accountant == "rdp" and ", a higher delta or the accountant \"prv\""
          or " or a higher delta")
    end
    high = 2 * high
    reached = spent(high)
  end
  while o.target_epsilon - reached > o.epsilon_tolerance do
    local middle = (low + high) / 2
    local cost = spent(middle)
    if cost < o.target_epsilon then high, reached = middle, cost else low = middle end
  end
  return high
end)

return privacy
