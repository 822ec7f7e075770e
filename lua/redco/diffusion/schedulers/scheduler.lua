--- The object of all schedulers: places in the schedule, added noise, and the steps of a class.
local arguments = require "redco.arguments"
local config = require "redco.diffusion.schedulers.config"
local fail = require "redco.fail"
local registry = require "redco.registry"
local tables = require "redco.diffusion.schedulers.tables"
local torch = require "redco.torch"

local methods = registry.define("Scheduler", [[
Scheduler {name, config: table, timesteps: list of numbers, init_noise_sigma: number, alphas_cumprod: Tensor}
The steps from noise to a sample, of one of diffusers' classes.
  name: the class, "DDIMScheduler" for example
  config: all keys of scheduler_config.json
  timesteps: those of sampling, after set_timesteps: the model is called once for each
  init_noise_sigma: the standard deviation of the noise that sampling starts from, after set_timesteps
  alphas_cumprod: float32 [num_train_timesteps], the share of the signal in the variance; nil for
    flow matching]], {})

local meta = { __name = "Scheduler" }

function meta.__index(self, key)
  local own = rawget(self, "class")
  return methods[key] or own and own[key]
end

function meta.__tostring(self)
  return self.timesteps and ("%s of %d timesteps"):format(self.name, #self.timesteps) or self.name
end

-- diffusers' PNDM and others keep the last beta below 1, because the ratio would be infinite.
local least_share = 2 ^ -24

--- Returns a scheduler of a class's file from a checked configuration.
local function new_scheduler(class, name, c)
  local self = { class = class, name = name, config = c }
  setmetatable(self, meta)
  if class.check then class.check(self) end
  if class.has_flow then
    self.training_sigmas = class.training_sigmas(c)
    return self
  end
  self.alphas_cumprod = tables.alphas_cumprod(name, c, class.schedules)
  if class.coefficients then  -- it works with ratios, which must be finite
    if c.rescale_betas_zero_snr then self.alphas_cumprod[-1]:fill_(least_share) end
    self.training_sigmas = tables.sigmas(self.alphas_cumprod)
  end
  self.shares = self.alphas_cumprod:tolist()
  return self
end

--- Returns the share of the signal at a timestep of training.
function methods.share(self, t)
  return self.shares[t + 1] or fail("%s: the timestep %s is not one of training, 0 to %d",
    self.name, t, #self.shares - 1)
end

--- The same; before the first timestep by set_alpha_to_one.
function methods.share_or_final(self, t)
  if t >= 0 then return self:share(t) end
  return self.config.set_alpha_to_one and 1 or self.shares[1]
end

--- Returns the timestep that follows t in sampling, -1 after the last.
function methods.next_timestep(self, t)
  for i, one in ipairs(self.timesteps) do
    if one == t then return self.timesteps[i + 1] or -1 end
  end
  return fail("%s: the timestep %s is not one of `timesteps`", self.name, t)
end

function methods.noise_like(self, t, o)
  if o.noise then
    if table.concat(o.noise.shape, ", ") ~= table.concat(t.shape, ", ") then
      fail("%s:step: noise: expected [%s], got [%s]", self.name, table.concat(t.shape, ", "),
        table.concat(o.noise.shape, ", "))
    end
    return o.noise
  end
  if not o.generator then fail("%s:step: it needs a generator, or noise", self.name) end
  return torch.empty_like(t):normal_(0, 1, { generator = o.generator })
end

local timestep_options = arguments("Scheduler:set_timesteps", {}, { "mu", "sigmas" })
methods.set_timesteps = registry.define("Scheduler:set_timesteps", [[
set_timesteps(self, num_inference_steps: integer, {mu: number = nil, sigmas: list = nil}) -> self
Begins a new sample: chooses `timesteps` and forgets the outputs of earlier steps. Of flow matching,
`mu` is the shift with use_dynamic_shifting, and `sigmas` those of the steps before the shift.]],
function(self, n, options)
  local o = timestep_options(options)
  local most = self.config.num_train_timesteps
  if type(n) ~= "number" or n < 1 or n % 1 ~= 0 or n > most then
    fail("%s:set_timesteps: expected a number of steps from 1 to %d (num_train_timesteps), got %s",
      self.name, most, n)
  end
  if o.sigmas and (not self.class.has_flow or #o.sigmas ~= n) then
    fail("%s:set_timesteps: sigmas: expected a list of %d numbers, and flow matching", self.name, n)
  end
  self.class.set_timesteps(self, n, o)
  self.index = nil
  local init = self.class.init_noise_sigma
  self.init_noise_sigma = init and init(self) or 1
  return self
end)

-- Returns the place of a timestep in the schedule. If the timestep occurs twice, returns the second
-- place, at which a sample that starts within the schedule begins.
local function place_of(self, t)
  if torch.is_tensor(t) then t = t:item() end
  local first
  for i, one in ipairs(self.timesteps) do
    if one == t then
      if first then return i end
      first = i
    end
  end
  return first or fail("%s: the timestep %s is not one of `timesteps`: %s", self.name, t,
    table.concat(self.timesteps, " ", 1, math.min(10, #self.timesteps)))
end

local function check_begun(self, where)
  if not self.timesteps then
    fail("%s:%s: call set_timesteps before it", self.name, where)
  end
end

methods.set_begin_index = registry.define("Scheduler:set_begin_index", [[
set_begin_index(self, begin_index: integer) -> self
Says that sampling begins with timestep number `begin_index`, counted from 0: 0 for a whole sample,
more for one that starts from a noisy picture.]], function(self, begin_index)
  check_begun(self, "set_begin_index")
  if type(begin_index) ~= "number" or not self.timesteps[begin_index + 1] then
    fail("%s:set_begin_index: expected 0 to %d, got %s", self.name, #self.timesteps - 1,
      begin_index)
  end
  self.index = begin_index + 1
  return self
end)

methods.scale_model_input = registry.define("Scheduler:scale_model_input", [[
scale_model_input(self, sample: Tensor, timestep: number) -> like sample
Returns the sample as the model expects it at this timestep.]], function(self, sample, t)
  check_begun(self, "scale_model_input")
  local scale = self.class.scale_model_input
  if not scale then return sample end
  self.index = self.index or place_of(self, t)
  return scale(self, sample, self.index)
end)

local step_options = arguments("Scheduler:step", { eta = 0 }, { "generator", "noise" })
methods.step = registry.define("Scheduler:step", [[
step(self, model_output: Tensor, timestep: number, sample: Tensor, {generator = nil, noise: Tensor = nil, eta = 0}) -> previous [like sample], x0 [like sample]
Goes from `sample` at `timestep` to the next of `timesteps`. model_output is the model's for the
sample (scaled by scale_model_input) and the timestep. Classes that draw noise need a `generator`, or
the `noise` [like sample] itself. `eta` is DDIM's share of DDPM's noise. x0 is the predicted clean
sample, nil where the class has none.]], function(self, output, t, sample, options)
  local o = step_options(options)
  check_begun(self, "step")
  if torch.is_tensor(t) then t = t:item() end
  self.index = self.index or place_of(self, t)
  if not self.timesteps[self.index] then
    fail("%s:step: all %d timesteps are done; set_timesteps begins a new sample", self.name,
      #self.timesteps)
  end
  local previous, x0 = self.class.step(self, output, t, sample, o)
  self.index = self.index + 1
  return previous, x0
end)

-- Numbers for each example as factors of a sample.
local function factors(values, sample)
  local shape = { -1 }
  for i = 2, sample:dim() do shape[i] = 1 end
  return values:to(sample.device, sample.dtype):view(shape)
end

-- The factors of signal and noise at timesteps: a tensor [batch] of integers, or a number.
local function by_table(self, timesteps, sample)
  if type(timesteps) == "number" then
    local share = self:share(timesteps)
    return math.sqrt(share), math.sqrt(1 - share)
  end
  local all = self.alphas_cumprod:to(timesteps.device, sample.dtype)
  local shares = factors(all:index_select(0, timesteps), sample)
  return shares:sqrt(), (1 - shares):sqrt()
end

local function by_schedule(self, timesteps, sample)
  if type(timesteps) == "number" then
    local is_next = self.index and self.timesteps[self.index] == timesteps
    return self:coefficients(is_next and self.index or place_of(self, timesteps))
  end
  local alphas, sigmas = {}, {}
  for i, t in ipairs(timesteps:full():tolist()) do
    alphas[i], sigmas[i] = self:coefficients(place_of(self, t))
  end
  local float64 = { dtype = "float64" }
  return factors(torch.tensor(alphas, float64), sample),
    factors(torch.tensor(sigmas, float64), sample)
end

methods.add_noise = registry.define("Scheduler:add_noise", [[
add_noise(self, sample: Tensor, noise: Tensor, timesteps: number or Tensor) -> like sample
Returns the sample [batch, ...] with noise [like sample] as at the timesteps, one or [batch]. Of DDPM,
DDIM and PNDM they are integers from 0 to num_train_timesteps - 1, of the other classes some of
`timesteps`.]], function(self, sample, noise, timesteps)
  if not self.class.coefficients then
    local alpha, sigma = by_table(self, timesteps, sample)
    return alpha * sample + sigma * noise
  end
  check_begun(self, "add_noise")
  local alpha, sigma = by_schedule(self, timesteps, sample)
  return alpha * sample + sigma * noise
end)

methods.get_velocity = registry.define("Scheduler:get_velocity", [[
get_velocity(self, sample: Tensor, noise: Tensor, timesteps: number or Tensor) -> like sample
Returns what a model with prediction_type "v_prediction" predicts (arXiv 2202.00512) for the sample
[batch, ...] with noise at the timesteps, integers from 0 to num_train_timesteps - 1.]],
function(self, sample, noise, timesteps)
  if not self.alphas_cumprod then
    fail("%s:get_velocity: flow matching has no such velocity; it predicts noise - sample",
      self.name)
  end
  local alpha, sigma = by_table(self, timesteps, sample)
  return alpha * noise - sigma * sample
end)

methods.to_json = registry.define("Scheduler:to_json", [[
to_json(self) -> table
Returns the contents of scheduler_config.json, which diffusers reads.]], function(self)
  return config.to_json(self.name, self.config)
end)

return new_scheduler
