--- The common parts of all distributions: checks of arguments, drawing, derived methods.
local arguments = require "redco.arguments"
local fail = require "redco.fail"
local native = require "redco.native"
local registry = require "redco.registry"
local torch = require "redco.torch"

local distribution = {}

local methods = registry.define("Distribution", [[
Distribution {batch_shape: list of integers, event_shape: list of integers, mean: Tensor, variance: Tensor, mode: Tensor}
A probability distribution for each element of its parameters.
  batch_shape: the shape of the parameters
  event_shape: the dimensions of one draw that depend on each other; {} if there are none
  mean, variance: the expected value and the variance; Categorical and TanhNormal have none
  mode: the most probable value: of TanhNormal the tanh of loc, the action without exploration]],
  {})

local properties = { mean = "mean_of", variance = "variance_of", mode = "mode_of" }

local meta = { __name = "Distribution" }

function meta.__index(self, key)
  if properties[key] then
    local f = rawget(self, properties[key])
    return f and f() or fail("Distribution: a %s distribution has no %s", rawget(self, "name"), key)
  end
  return methods[key] or fail("a %s distribution has no '%s'", rawget(self, "name"), key)
end

function meta.__tostring(self)
  return ("%s([%s])"):format(self.name, table.concat(self.batch_shape, ", "))
end

--- Returns a distribution of `fields`: name, batch_shape, event_shape, is_differentiable, and the
--- functions draw(sample_shape, rng), draw_and_log_prob(sample_shape, rng), density(value),
--- entropy_of(), mean_of(), variance_of() and mode_of(). All but draw and density may be missing.
function distribution.new(fields)
  return setmetatable(fields, meta)
end

function distribution.is(value) return getmetatable(value) == meta end

--- Returns the parameters as tensors of one shape: each is a tensor or a number. Numbers alone are
--- float32 on the CPU.
function distribution.broadcast(where, names, ...)
  local values, like = { ... }, nil
  for _, value in ipairs(values) do like = like or torch.is_tensor(value) and value or nil end
  like = like or { dtype = "float32" }
  for i, name in ipairs(names) do
    local value = values[i]
    if type(value) == "number" then
      values[i] = torch.full({}, value, { dtype = like.dtype, device = like.device })
    elseif not torch.is_tensor(value) then
      fail("%s: %s: expected a tensor or a number, got %s", where, name, native.describe(value))
    end
    if not values[i].dtype:find "float" then
      fail("%s: %s: expected a floating-point tensor, got %s", where, name, values[i].dtype)
    end
  end
  return unpack(torch.broadcast_tensors(values))
end

--- The distance from 1 to the next number of each dtype.
distribution.eps = { float64 = 2 ^ -52, float32 = 2 ^ -23, bfloat16 = 2 ^ -7, float16 = 2 ^ -10 }

--- Returns one of two parameters that exclude each other, "probs" or "logits", and its name.
function distribution.one_of(where, given)
  if (given.probs == nil) == (given.logits == nil) then
    fail("%s: expected either probs or logits", where)
  end
  local name = given.probs ~= nil and "probs" or "logits"
  if not torch.is_tensor(given[name]) or not given[name].dtype:find "float" then
    fail("%s: %s: expected a floating-point tensor, got %s", where, name,
      torch.is_tensor(given[name]) and given[name].dtype or "a " .. type(given[name]))
  end
  return given[name], name
end

--- Returns a tensor of the shape sample_shape + that of `like`, to be filled with random numbers.
--- It is made from `like`, so that it is split over the processes in the same way.
function distribution.empty(like, sample_shape)
  if #sample_shape == 0 then return torch.empty_like(like:detach()) end
  local shape = { unpack(sample_shape) }
  for _, size in ipairs(like.shape) do shape[#shape + 1] = size end
  return torch.empty_like(like:detach():expand(shape))
end

local draw = arguments("Distribution:sample", { sample_shape = {} }, { "rng" })

local function drawn(self, method, options, f)
  local o = draw(options)
  if not o.rng then
    fail("Distribution:%s: it needs rng, the Generator that loss_fn is given, or "
      .. "torch.Generator(seed)", method)
  end
  return f(o.sample_shape, o.rng)
end

methods.sample = registry.define("Distribution:sample", [[
sample(self, {rng, sample_shape: list of integers = {}}) -> Tensor [sample_shape, batch_shape, event_shape]
Draws values, without gradients. `rng` is the Generator that loss_fn receives, or another. An
element gets the same number on any number of processes.]], function(self, options)
  return torch.no_grad(drawn, self, "sample", options, self.draw)
end)

methods.rsample = registry.define("Distribution:rsample", [[
rsample(self, {rng, sample_shape: list of integers = {}}) -> Tensor [sample_shape, batch_shape, event_shape]
Draws values through which gradients flow to the parameters. Categorical and Bernoulli have none.]],
function(self, options)
  if not rawget(self, "is_differentiable") then
    fail("Distribution:rsample: a %s distribution has no gradients of draws; use sample and "
      .. "log_prob", self.name)
  end
  return drawn(self, "rsample", options, self.draw)
end)

methods.rsample_and_log_prob = registry.define("Distribution:rsample_and_log_prob", [[
rsample_and_log_prob(self, {rng, sample_shape: list of integers = {}}) -> Tensor, Tensor
Returns a draw as by `rsample` and its log-probability. For TanhNormal it is exact, while log_prob
has to invert tanh, which is imprecise near -1 and 1.]], function(self, options)
  local both = rawget(self, "draw_and_log_prob")
  if both then return drawn(self, "rsample_and_log_prob", options, both) end
  local value = self:rsample(options)
  return value, self.density(value)
end)

methods.log_prob = registry.define("Distribution:log_prob", [[
log_prob(self, value) -> Tensor
Returns the logarithm of the probability, or of the density, of values.]], function(self, value)
  return self.density(value)
end)

methods.entropy = registry.define("Distribution:entropy", [[
entropy(self) -> Tensor [batch_shape]
Returns the entropy in nats. TanhNormal has none in closed form.]], function(self)
  local f = rawget(self, "entropy_of")
  return f and f() or fail("Distribution:entropy: a %s distribution has none", self.name)
end)

return distribution
