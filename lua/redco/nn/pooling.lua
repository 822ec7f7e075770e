--- Pooling over one to three dimensions.
local arguments = require "redco.arguments"
local registry = require "redco.registry"
local torch = require "redco.torch"

local pooling = {}

local function define(name, text, f)
  pooling[name] = registry.define("redco.nn." .. name, text, f)
end

for n = 1, 3 do
  local max = "max_pool" .. n .. "d"
  local use_max = arguments("nn." .. max, { padding = 0, dilation = 1, ceil_mode = false },
    { "stride" })
  define(max, ([[
%s(x [batch, channels, size...], kernel_size, {stride = kernel_size, padding = 0, dilation = 1, ceil_mode = false}) -> [batch, channels, size...]
Returns the greatest value of each window of kernel_size. `ceil_mode` keeps windows that reach
beyond the end.]]):format(max), function(x, kernel_size, options)
    local o = use_max(options)
    return torch[max](x, kernel_size, o.stride or {}, o.padding, o.dilation, o.ceil_mode)
  end)

  local avg = "avg_pool" .. n .. "d"
  local use_avg = arguments("nn." .. avg,
    { padding = 0, ceil_mode = false, count_include_pad = true }, { "stride" })
  define(avg, ([[
%s(x [batch, channels, size...], kernel_size, {stride = kernel_size, padding = 0, ceil_mode = false, count_include_pad = true}) -> [batch, channels, size...]
Returns the mean of each window of kernel_size. With count_include_pad = false the zeros of the
padding do not count.]]):format(avg), function(x, kernel_size, options)
    local o = use_avg(options)
    return torch[avg](x, kernel_size, o.stride or {}, o.padding, o.ceil_mode, o.count_include_pad)
  end)

  local adaptive_avg = "adaptive_avg_pool" .. n .. "d"
  define(adaptive_avg, ([[
%s(x [batch, channels, size...], output_size) -> [batch, channels, output_size...]
Returns means over windows of x such that the result has output_size, a number or a list.]])
    :format(adaptive_avg), function(x, output_size)
    return torch[adaptive_avg](x, output_size)
  end)

  local adaptive_max = "adaptive_max_pool" .. n .. "d"
  define(adaptive_max, ([[
%s(x [batch, channels, size...], output_size) -> [batch, channels, output_size...]
Returns the greatest values of windows of x such that the result has output_size, a number or a
list.]]):format(adaptive_max), function(x, output_size)
    return (torch[adaptive_max](x, output_size))
  end)
end

return pooling
