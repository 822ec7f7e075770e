--- Batch, group and instance normalisation.
local arguments = require "redco.arguments"
local check_params = require "redco.nn.check_params"
local fail = require "redco.fail"
local native = require "redco.native"
local registry = require "redco.registry"
local torch = require "redco.torch"

local norms = {}

local function define(name, text, f)
  norms[name] = registry.define("redco.nn." .. name, text, f)
end

-- Weight and bias of a normalisation over channels.
local function affine_params(n)
  return { weight = torch.ones { n }, bias = torch.zeros { n } }
end

local batch = arguments("nn.BatchNorm", { affine = true, track_running_stats = true })
define("BatchNorm", [[
BatchNorm(num_features, {affine = true, track_running_stats = true}) -> params
Returns the parameters of `batch_norm`: {weight, bias, running_mean, running_var}, each
[num_features]. Without `affine` there are no weight and bias, and without `track_running_stats` no
running statistics. The running statistics are state: a Trainer does not train them, and saves and
resumes them with the other parameters.]], function(num_features, options)
  local o = batch(options)
  local params = o.affine and affine_params(num_features) or {}
  if o.track_running_stats then
    params.running_mean, params.running_var =
      torch.zeros { num_features }, torch.ones { num_features }
  end
  return params
end)

define("is_running_statistic", [[
is_running_statistic(name) -> boolean
Returns whether a parameter's dotted name ends in running_mean or running_var, the state of
`batch_norm`, which an optimizer must leave alone. A Trainer does so.]], function(name)
  local last = tostring(name):match "[^.]*$"
  return last == "running_mean" or last == "running_var"
end)

-- The optimizer would also update statistics with a gradient, and in another compute_dtype their
-- updates would be lost.
local function check_statistics(params)
  for _, name in ipairs { "running_mean", "running_var" } do
    if params[name] and params[name].requires_grad then
      fail("nn.batch_norm: %s is trained by gradients; leave it out of the argument of redco.grad",
        name)
    end
  end
end

local use_batch = arguments("nn.batch_norm", { train = false, momentum = 0.1, eps = 1e-5 })
-- If a dimension behind the channels has the size 1, an image fits two memory formats. LibTorch's
-- gradients on the CPU are wrong if it assumes one format for x and the other for the gradient of
-- the output.
local function unambiguous(x)
  for d = 2, x:dim() > 3 and x:dim() - 1 or 0 do
    if x:size(d) == 1 then return x:flatten(2) end
  end
  return x
end

define("batch_norm", [[
batch_norm(params, x [batch, channels, ...], {train = false, momentum = 0.1, eps = 1e-5}) -> like x
Normalises each channel over the batch and all further dimensions: Ioffe and Szegedy, 2015. In
training it uses the statistics of the whole batch, on any number of processes, and updates
params.running_mean and params.running_var in place: new = (1 - momentum) * old + momentum * that of
the batch. Otherwise it uses these running statistics, or those of x if there are none. With
micro-batches the statistics are those of each micro-batch.]], function(params, x, options)
  check_params("batch_norm", "BatchNorm", params)
  local o = use_batch(options)
  if x:dim() < 2 then
    fail("nn.batch_norm: expected x [batch, channels, ...], got [%s]", table.concat(x.shape, ", "))
  end
  if o.train then
    check_statistics(params)
    if x:numel() == x:size(1) then
      fail("nn.batch_norm: x [%s] has one value per channel; training needs at least two",
        table.concat(x.shape, ", "))
    end
  end
  local mean, var = params.running_mean, params.running_var
  if not o.train and mean then mean, var = mean:detach(), var:detach() end
  -- The first run of the function in redco.checkpoint has already updated the statistics.
  if o.train and mean and native.is_recomputing() then
    mean, var = torch.zeros_like(mean), torch.zeros_like(var)
  end
  local y = torch.batch_norm(unambiguous(x), params.weight, params.bias, mean, var,
    o.train or not mean, o.momentum, o.eps, false)
  return y:dim() == x:dim() and y or y:view(x.shape)
end)

define("GroupNorm", [[
GroupNorm(num_channels) -> params
Returns the parameters of `group_norm`: {weight, bias} [num_channels], filled with 1 and 0.]],
function(num_channels) return affine_params(num_channels) end)

local use_group = arguments("nn.group_norm", { eps = 1e-5 }, { "num_groups" })
define("group_norm", [[
group_norm(params, x [batch, channels, ...], {num_groups, eps = 1e-5}) -> like x
Normalises each example over groups of channels and all further dimensions: Wu and He, 2018.]],
function(params, x, options)
  check_params("group_norm", "GroupNorm", params)
  local o = use_group(options)
  local n = o.num_groups or fail "nn.group_norm: num_groups is missing"
  if type(n) ~= "number" or n < 1 or n % 1 ~= 0 or x:dim() < 2 or x:size(1) % n ~= 0 then
    fail("nn.group_norm: num_groups = %s does not divide the channels of x [%s]", n,
      table.concat(x.shape, ", "))
  end
  return torch.group_norm(x, n, params.weight, params.bias, o.eps, false)
end)

define("InstanceNorm", [[
InstanceNorm(num_features) -> params
Returns the parameters of `instance_norm`: {weight, bias} [num_features], filled with 1 and 0. An
instance norm without parameters is instance_norm({}, x).]],
function(num_features) return affine_params(num_features) end)

local use_instance = arguments("nn.instance_norm", { eps = 1e-5 })
define("instance_norm", [[
instance_norm(params, x [batch, channels, size...], {eps = 1e-5}) -> like x
Normalises each channel of each example over its further dimensions: Ulyanov et al., 2016. The
params may be {}.]], function(params, x, options)
  check_params("instance_norm", "InstanceNorm", params)
  if x:dim() < 3 then
    fail("nn.instance_norm: expected x [batch, channels, size...], got [%s]",
      table.concat(x.shape, ", "))
  end
  -- Groups of one channel: unlike LibTorch's instance_norm, this merges no batch with channels.
  return torch.group_norm(x, x:size(1), params.weight, params.bias, use_instance(options).eps,
    false)
end)

return norms
