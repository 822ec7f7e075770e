--- The tables of noise schedules: betas, alphas, sigmas, and the timesteps of sampling. Timesteps
--- and sigmas are lists of numbers, the first at index 1. They follow diffusers' roundings: float32
--- tables, ties to even.
local ffi = require "ffi"
local fail = require "redco.fail"
local torch = require "redco.torch"

local tables = {}

local single = ffi.new "float[1]"

--- Returns a number rounded to float32.
function tables.float32(x)
  single[0] = x
  return tonumber(single[0])
end

--- Rounds to the nearest integer, ties to the even one.
function tables.round(x)
  local low = math.floor(x)
  local rest = x - low
  if rest < 0.5 or rest == 0.5 and low % 2 == 0 then return low end
  return low + 1
end

--- Returns n numbers from first to last; the last is exact.
function tables.linspace(first, last, n)
  local values, step = {}, (last - first) / (n - 1)
  for i = 1, n do values[i] = first + (i - 1) * step end
  if n > 1 then values[n] = last end
  return values
end

function tables.reversed(list)
  local result = {}
  for i = #list, 1, -1 do result[#result + 1] = list[i] end
  return result
end

function tables.map(list, f)
  local result = {}
  for i, value in ipairs(list) do result[i] = f(value) end
  return result
end

-- Betas by the share of the signal that is left at time t of [0, 1].
local function betas_of_share(share, n)
  local betas = {}
  for i = 1, n do betas[i] = math.min(1 - share(i / n) / share((i - 1) / n), 0.999) end
  return torch.tensor(betas, { dtype = "float32" })
end

local float32 = { dtype = "float32" }

-- The betas of each beta_schedule, float32 [num_train_timesteps].
local beta_schedules = {
  linear = function(c)
    return torch.linspace(c.beta_start, c.beta_end, c.num_train_timesteps, float32)
  end,
  scaled_linear = function(c)
    return torch.linspace(math.sqrt(c.beta_start), math.sqrt(c.beta_end), c.num_train_timesteps,
      float32):square()
  end,
  squaredcos_cap_v2 = function(c)
    return betas_of_share(function(t)
      return math.cos((t + 0.008) / 1.008 * math.pi / 2) ^ 2
    end, c.num_train_timesteps)
  end,
  sigmoid = function(c)
    return torch.linspace(-6, 6, c.num_train_timesteps, float32):sigmoid()
      * (c.beta_end - c.beta_start) + c.beta_start
  end,
  exp = function(c)
    return betas_of_share(function(t) return math.exp(-12 * t) end, c.num_train_timesteps)
  end,
}

-- Betas whose last step has no signal left (arXiv 2305.08891, algorithm 1).
local function with_zero_snr(betas)
  local roots = (1 - betas):cumprod(0):sqrt()
  local first, last = roots[0]:clone(), roots[-1]:clone()
  roots = (roots - last) * (first / (first - last))
  local shares = roots:square()
  local alphas = torch.cat { shares:narrow(0, 0, 1),
    shares:narrow(0, 1, shares:size(0) - 1) / shares:narrow(0, 0, shares:size(0) - 1) }
  return 1 - alphas
end

--- Returns alphas_cumprod, float32 [num_train_timesteps]: the share of the signal's variance.
--- `schedules` are the names that the class knows.
function tables.alphas_cumprod(where, c, schedules)
  local betas
  if c.trained_betas then
    betas = torch.tensor(c.trained_betas, float32)
    if betas:dim() ~= 1 or betas:size(0) ~= c.num_train_timesteps then
      fail("%s: trained_betas: expected %d numbers (num_train_timesteps), got %d", where,
        c.num_train_timesteps, betas:numel())
    end
  elseif not schedules[c.beta_schedule] then
    fail("%s: beta_schedule '%s' is not supported by this class", where, c.beta_schedule)
  else
    betas = beta_schedules[c.beta_schedule](c)
  end
  if c.rescale_betas_zero_snr then betas = with_zero_snr(betas) end
  return (1 - betas):cumprod(0)
end

--- Returns the ratio of noise to signal at each timestep of training.
function tables.sigmas(alphas_cumprod)
  return ((1 - alphas_cumprod) / alphas_cumprod):sqrt():tolist()
end

local spacings = {}

function spacings.linspace(n, last, _, extra)
  local all = tables.reversed(tables.linspace(0, last - 1, n + extra))
  if n + extra == 1 then all = { 0 } end
  all[n + 1] = nil
  return all
end

function spacings.leading(n, last, c, extra)
  local all, ratio = {}, math.floor(last / (n + extra))
  for i = 1, n do all[i] = (n - i + extra) * ratio + c.steps_offset end
  return all
end

function spacings.trailing(n, last, c)
  local all, ratio = {}, c.num_train_timesteps / n
  local step = last - ratio - last  -- as numpy.arange rounds
  for i = 0, math.ceil(last / ratio) - 1 do all[i + 1] = tables.round(last + i * step) - 1 end
  return all
end

--- Returns n descending timesteps by c.timestep_spacing. `extra` is 1 for the solvers that leave
--- out the last of n + 1 timesteps; `last` is the number of training timesteps in use. Only
--- `linspace` has fractions.
function tables.spaced(where, c, n, extra, last)
  local spacing = spacings[c.timestep_spacing]
  if not spacing then
    fail("%s: timestep_spacing: expected linspace, leading or trailing, got '%s'", where,
      c.timestep_spacing)
  end
  return spacing(n, last or c.num_train_timesteps, c, extra or 0)
end

--- Interpolates the list `values`, whose first is at 0, linearly at x.
function tables.interpolate(values, x)
  x = math.max(0, math.min(#values - 1, x))
  local low = math.min(math.floor(x), #values - 2)
  local first = values[low + 1]
  return first + (values[low + 2] - first) * (x - low)
end

--- Returns the timestep, with a fraction, at which `sigmas` (ascending) is sigma. The logarithms
--- are rounded to float32, as diffusers' are: a timestep may be cut to an integer.
function tables.timestep_of(sigma, sigmas)
  local function log_of(i) return tables.float32(math.log(sigmas[i])) end
  local log_sigma = math.log(math.max(sigma, 1e-10))
  local low = 1
  for i = 1, #sigmas do
    if log_sigma >= log_of(i) then low = i end
  end
  low = math.min(low, #sigmas - 1)
  local a, b = log_of(low), log_of(low + 1)
  local w = math.max(0, math.min(1, (a - log_sigma) / tables.float32(a - b)))
  return (1 - w) * (low - 1) + w * low
end

--- Ways to space n sigmas from the largest to the smallest.
tables.sigma_spacings = {
  use_karras_sigmas = function(largest, smallest, n)  -- arXiv 2206.00364, rho = 7
    local a, b = largest ^ (1 / 7), smallest ^ (1 / 7)
    return tables.map(tables.linspace(0, 1, n), function(t) return (a + t * (b - a)) ^ 7 end)
  end,
  use_exponential_sigmas = function(largest, smallest, n)
    return tables.map(tables.linspace(math.log(largest), math.log(smallest), n), math.exp)
  end,
  use_lu_lambdas = function(largest, smallest, n)  -- arXiv 2211.01095, uniform in log(sigma)
    local a, b = tables.float32(math.log(largest)), tables.float32(math.log(smallest))
    return tables.map(tables.linspace(0, 1, n), function(t) return math.exp(a + t * (b - a)) end)
  end,
}

--- Returns n sigmas between those of the schedule (or c.sigma_max and c.sigma_min) if c asks for
--- one of the spacings above, else nil.
function tables.respaced(where, c, largest, smallest, n)
  local chosen
  for _, key in ipairs { "use_karras_sigmas", "use_exponential_sigmas", "use_lu_lambdas" } do
    if c[key] then
      if chosen then fail("%s: %s and %s are both set", where, chosen, key) end
      chosen = key
    end
  end
  if not chosen then return nil end
  return tables.sigma_spacings[chosen](c.sigma_max or largest, c.sigma_min or smallest, n)
end

return tables
