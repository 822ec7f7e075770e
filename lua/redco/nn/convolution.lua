--- Convolutions of one to three dimensions, and transposed ones.
local arguments = require "redco.arguments"
local check_params = require "redco.nn.check_params"
local init = require "redco.nn.initializers"
local registry = require "redco.registry"
local torch = require "redco.torch"
local parameter = require("redco.native").parameter

local convolution = {}

local function repeated(size, n)
  if type(size) == "table" then return size end
  local sizes = {}
  for i = 1, n do sizes[i] = size end
  return sizes
end

-- A weight of this shape, and the bounds that its bias shares.
local function new_params(shape, generator)
  local fan = 1
  for i = 2, #shape do fan = fan * shape[i] end
  local bound = { a = -1 / math.sqrt(fan), b = 1 / math.sqrt(fan), generator = generator }
  return { weight = init.uniform_(parameter(shape), bound) }, bound
end

--- Defines the two functions of a convolution over `n` dimensions.
local function define(name, n, apply)
  local new = arguments("nn." .. name, { bias = true, groups = 1 }, { "generator" })
  convolution[name] = registry.define("redco.nn." .. name, ([[
%s(in_channels, out_channels, kernel_size, {bias = true, groups = 1, generator = nil}) -> params
Returns the parameters of `%s`: {weight [out, in / groups, kernel...], bias [out]}, uniform in
(-1/sqrt(fan_in), 1/sqrt(fan_in)).]])
    :format(name, name:lower()), function(in_channels, out_channels, kernel_size, options)
    local o = new(options)
    local params, bound = new_params(
      { out_channels, in_channels / o.groups, unpack(repeated(kernel_size, n)) }, o.generator)
    if o.bias then params.bias = init.uniform_(parameter { out_channels }, bound) end
    return params
  end)

  local lower = name:lower()
  local use = arguments("nn." .. lower, { stride = 1, padding = 0, dilation = 1, groups = 1 })
  convolution[lower] = registry.define("redco.nn." .. lower, ([[
%s(params, x [batch, in, size...], {stride = 1, padding = 0, dilation = 1, groups = 1}) -> [batch, out, size...]
Computes the cross-correlation of x with params.weight. `padding` is a number, a list, "same" or
"valid". `%s` makes the params, with the same `groups`.]])
    :format(lower, name), function(params, x, options)
    check_params(lower, name, params, "weight")
    local o = use(options)
    return apply(x, params.weight, params.bias, o.stride, o.padding, o.dilation, o.groups)
  end)
end

define("Conv1d", 1, torch.conv1d)
define("Conv2d", 2, torch.conv2d)
define("Conv3d", 3, torch.conv3d)

--- Defines the two functions of a transposed convolution over `n` dimensions.
local function define_transposed(n, apply)
  local name, lower = ("ConvTranspose%dd"):format(n), ("conv_transpose%dd"):format(n)
  local new = arguments("nn." .. name, { bias = true, groups = 1 }, { "generator" })
  convolution[name] = registry.define("redco.nn." .. name, ([[
%s(in_channels, out_channels, kernel_size, {bias = true, groups = 1, generator = nil}) -> params
Returns the parameters of `%s`: {weight [in, out / groups, kernel...], bias [out]}, uniform in
(-1/sqrt(fan), 1/sqrt(fan)) with fan = out / groups * the size of the kernel.]])
    :format(name, lower), function(in_channels, out_channels, kernel_size, options)
    local o = new(options)
    local params, bound = new_params(
      { in_channels, out_channels / o.groups, unpack(repeated(kernel_size, n)) }, o.generator)
    if o.bias then params.bias = init.uniform_(parameter { out_channels }, bound) end
    return params
  end)

  local use = arguments("nn." .. lower,
    { stride = 1, padding = 0, output_padding = 0, dilation = 1, groups = 1 })
  convolution[lower] = registry.define("redco.nn." .. lower, ([[
%s(params, x [batch, in, size...], {stride = 1, padding = 0, output_padding = 0, dilation = 1, groups = 1}) -> [batch, out, size...]
Computes the transposed convolution of x with params.weight, the gradient of a convolution with
respect to its input: size' = (size - 1) * stride - 2 * padding + dilation * (kernel - 1) +
output_padding + 1. `%s` makes the params, with the same `groups`.]])
    :format(lower, name), function(params, x, options)
    check_params(lower, name, params, "weight")
    local o = use(options)
    return apply(x, params.weight, params.bias, o.stride, o.padding, o.output_padding, o.groups,
      o.dilation)
  end)
end

define_transposed(1, torch.conv_transpose1d)
define_transposed(2, torch.conv_transpose2d)
define_transposed(3, torch.conv_transpose3d)

return convolution
