--- Initialisers, as in torch.nn.init: each function fills its tensor in place and returns it.
local arguments = require "redco.arguments"
local check_choice = require "redco.check_choice"
local fail = require "redco.fail"
local names_of = require "redco.names_of"
local native = require "redco.native"
local registry = require "redco.registry"
local torch = require "redco.torch"

local init = {}

local function define(name, text, f)
  init[name] = registry.define("redco.nn.init." .. name, text, function(t, ...)
    if not torch.is_tensor(t) then
      fail("nn.init.%s: expected a tensor, got %s", name, native.describe(t))
    end
    local rest = { ... }
    return torch.no_grad(function() return f(t, unpack(rest)) end)
  end)
end

--- Returns fan_in and fan_out of a weight [out, in, kernel...].
local function fans(t, where)
  local shape = t.shape
  if #shape < 2 then
    fail("%s: needs a tensor of at least 2 dimensions, got [%s]", where, table.concat(shape, ", "))
  end
  local receptive = t:numel() / math.max(1, shape[1] * shape[2])
  return shape[2] * receptive, shape[1] * receptive
end

-- torch.nn.init.calculate_gain
local gains = {
  linear = function() return 1 end,
  sigmoid = function() return 1 end,
  tanh = function() return 5 / 3 end,
  relu = function() return math.sqrt(2) end,
  leaky_relu = function(a) return math.sqrt(2 / (1 + a * a)) end,
  selu = function() return 3 / 4 end,
}

local function gain_of(nonlinearity, a, where)
  local gain = gains[nonlinearity]
  if not gain then
    fail("%s: nonlinearity: expected one of %s, got %s", where, table.concat(names_of(gains), ", "),
      nonlinearity)
  end
  return gain(a)
end

define("zeros_", [[
zeros_(tensor) -> tensor
Fills with 0.]], function(t) return t:zero_() end)

define("ones_", [[
ones_(tensor) -> tensor
Fills with 1.]], function(t) return t:fill_(1) end)

define("constant_", [[
constant_(tensor, value) -> tensor
Fills with `value`.]], function(t, value) return t:fill_(value) end)

local normal = arguments("nn.init.normal_", { mean = 0, std = 1 }, { "generator" })
define("normal_", [[
normal_(tensor, {mean = 0, std = 1, generator = nil}) -> tensor
Fills with values of the normal distribution.]], function(t, options)
  local o = normal(options)
  return t:normal_(o.mean, o.std, { generator = o.generator })
end)

local uniform = arguments("nn.init.uniform_", { a = 0, b = 1 }, { "generator" })
define("uniform_", [[
uniform_(tensor, {a = 0, b = 1, generator = nil}) -> tensor
Fills with values of the uniform distribution on [a, b).]], function(t, options)
  local o = uniform(options)
  return t:uniform_(o.a, o.b, { generator = o.generator })
end)

local truncated = arguments("nn.init.trunc_normal_", { mean = 0, std = 1, a = -2, b = 2 },
  { "generator" })
define("trunc_normal_", [[
trunc_normal_(tensor, {mean = 0, std = 1, a = -2, b = 2, generator = nil}) -> tensor
Fills with values of the normal distribution truncated to [a, b], by inverting its distribution
function.]],
function(t, options)
  local o = truncated(options)
  local function quantile(x)
    return torch.special_ndtr(torch.tensor((x - o.mean) / o.std, { dtype = "float64" })):item()
  end
  -- ndtri(u) = sqrt(2) erfinv(2u - 1)
  t:uniform_(2 * quantile(o.a) - 1, 2 * quantile(o.b) - 1, { generator = o.generator })
  return t:erfinv_():mul_(o.std * math.sqrt(2)):add_(o.mean):clamp_(o.a, o.b)
end)

local xavier = arguments("nn.init.xavier", { gain = 1 }, { "generator" })
define("xavier_uniform_", [[
xavier_uniform_(tensor, {gain = 1, generator = nil}) -> tensor
Fills with uniform values in (-a, a), a = gain * sqrt(6 / (fan_in + fan_out)): Glorot and Bengio,
2010.]],
function(t, options)
  local o = xavier(options)
  local fan_in, fan_out = fans(t, "nn.init.xavier_uniform_")
  local a = o.gain * math.sqrt(6 / (fan_in + fan_out))
  return t:uniform_(-a, a, { generator = o.generator })
end)

define("xavier_normal_", [[
xavier_normal_(tensor, {gain = 1, generator = nil}) -> tensor
Fills with normal values, std = gain * sqrt(2 / (fan_in + fan_out)): Glorot and Bengio, 2010.]],
function(t, options)
  local o = xavier(options)
  local fan_in, fan_out = fans(t, "nn.init.xavier_normal_")
  return t:normal_(0, o.gain * math.sqrt(2 / (fan_in + fan_out)), { generator = o.generator })
end)

local kaiming = arguments("nn.init.kaiming",
  { a = 0, mode = "fan_in", nonlinearity = "leaky_relu" }, { "generator" })

local function kaiming_std(t, o, where)
  local fan_in, fan_out = fans(t, where)
  check_choice(where, "mode", o.mode, "fan_in", "fan_out")
  local fan = o.mode == "fan_in" and fan_in or fan_out
  return gain_of(o.nonlinearity, o.a, where) / math.sqrt(fan)
end

define("kaiming_uniform_", [[
kaiming_uniform_(tensor, {a = 0, mode = "fan_in", nonlinearity = "leaky_relu", generator = nil}) -> tensor
Fills with uniform values in (-b, b), b = gain * sqrt(3 / fan): He et al., 2015. `mode` is "fan_in"
(the inputs of an output) or "fan_out". `nonlinearity` determines the gain: linear, sigmoid, tanh,
relu, selu, or leaky_relu with the slope `a`, which is relu by default.]],
function(t, options)
  local o = kaiming(options)
  local bound = math.sqrt(3) * kaiming_std(t, o, "nn.init.kaiming_uniform_")
  return t:uniform_(-bound, bound, { generator = o.generator })
end)

define("kaiming_normal_", [[
kaiming_normal_(tensor, {a = 0, mode = "fan_in", nonlinearity = "leaky_relu", generator = nil}) -> tensor
Fills with normal values, std = gain / sqrt(fan): He et al., 2015. The arguments are as in
`kaiming_uniform_`.]], function(t, options)
  local o = kaiming(options)
  return t:normal_(0, kaiming_std(t, o, "nn.init.kaiming_normal_"), { generator = o.generator })
end)

local orthogonal = arguments("nn.init.orthogonal_", { gain = 1 }, { "generator" })
define("orthogonal_", [[
orthogonal_(tensor, {gain = 1, generator = nil}) -> tensor
Fills with a (semi-)orthogonal matrix, times `gain`: Saxe et al., 2013. A tensor of more than two
dimensions counts as the matrix [first dimension, all others].]],
function(t, options)
  local o = orthogonal(options)
  fans(t, "nn.init.orthogonal_")
  local rows = t:size(0)
  local columns = t:numel() / rows
  local flat = torch.randn({ rows, columns }, { generator = o.generator })
  if rows < columns then flat = flat:t() end
  local q, r = torch.linalg_qr(flat)
  -- The sign of R's diagonal makes the distribution uniform.
  q = q * r:diag():sign()
  if rows < columns then q = q:t() end
  return t:copy_(q:reshape(t.shape)):mul_(o.gain)
end)

define("eye_", [[
eye_(tensor [rows, columns]) -> tensor
Fills with the identity matrix, ones on the diagonal.]], function(t)
  if t:dim() ~= 2 then
    fail("nn.init.eye_: needs a matrix, got [%s]", table.concat(t.shape, ", "))
  end
  return t:copy_(torch.eye(t:size(0), t:size(1), { dtype = t.dtype, device = t.device }))
end)

local dirac = arguments("nn.init.dirac_", { groups = 1 })
define("dirac_", [[
dirac_(tensor [out, in, kernel...], {groups = 1}) -> tensor
Fills the weight of a convolution so that it passes its inputs: as many channels as there are, in
each group.]], function(t, options)
  local groups, shape = dirac(options).groups, t.shape
  if #shape < 3 or #shape > 5 or groups < 1 or shape[1] % groups ~= 0 then
    fail("nn.init.dirac_: needs a weight [out, in, kernel...] of 3 to 5 dimensions with out a "
      .. "multiple of groups = %s, got [%s]", groups, table.concat(shape, ", "))
  end
  t:zero_()
  local per_group = shape[1] / groups
  for group = 0, groups - 1 do
    for i = 0, math.min(per_group, shape[2]) - 1 do
      local place = { group * per_group + i, i }
      for d = 3, #shape do place[d] = math.floor(shape[d] / 2) end
      t[place] = 1
    end
  end
  return t
end)

local sparse = arguments("nn.init.sparse_", { std = 0.01 }, { "sparsity", "generator" })
define("sparse_", [[
sparse_(tensor [rows, columns], {sparsity, std = 0.01, generator = nil}) -> tensor
Fills with normal values, and sets the fraction `sparsity` of each column, rounded up, to 0:
Martens, 2010.]], function(t, options)
  local o = sparse(options)
  if t:dim() ~= 2 or type(o.sparsity) ~= "number" or o.sparsity < 0 or o.sparsity > 1 then
    fail("nn.init.sparse_: needs a matrix and a sparsity from 0 to 1, got [%s] and %s",
      table.concat(t.shape, ", "), o.sparsity)
  end
  local rows = t:size(0)
  local order = torch.rand(t.shape, { generator = o.generator }):argsort(0):argsort(0)
  t:normal_(0, o.std, { generator = o.generator })
  return t:masked_fill_(order:lt(math.ceil(o.sparsity * rows)):to(t.device), 0)
end)

init.calculate_gain = registry.define("redco.nn.init.calculate_gain", [[
calculate_gain(nonlinearity, param = nil) -> number
Returns the gain that keeps the variance of activations after a nonlinearity: linear, sigmoid, tanh,
relu, selu, or leaky_relu with the slope `param`, by default 0.01. Other initialisers take it as
`gain`.]], function(nonlinearity, param)
  return gain_of(nonlinearity, param or 0.01, "nn.init.calculate_gain")
end)

return registry.define("redco.nn.init", [[
redco.nn.init
Initialisers, as in torch.nn.init. Each function fills its tensor in place and returns it.]],
  init)
