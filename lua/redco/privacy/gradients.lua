--- Private gradients: the gradients of the examples, each clipped, their sum, and noise.
local arguments = require "redco.arguments"
local fail = require "redco.fail"
local native = require "redco.native"
local registry = require "redco.registry"
local torch = require "redco.torch"
local transforms = require "redco.transforms"
local tree = require "redco.tree"

local where = "privacy.gradients"

--- Returns the number of examples of a batch; 0 if it has no tensors.
local function count_rows(batch)
  local n
  for _, leaf in ipairs(tree.leaves(batch)) do
    if torch.is_tensor(leaf) then
      local rows = leaf.ndim > 0 and leaf:size(0) or nil
      if not rows or n and rows ~= n then
        fail("%s: the batch has a tensor [%s], expected %s rows, one for each example", where,
          table.concat(leaf.shape, ", "), n or "some")
      end
      n = rows
    end
  end
  return n or 0
end

--- Returns how to split rows over the processes that hold these tensors; nil for plain tensors.
local function split_of(leaves)
  for _, leaf in ipairs(leaves) do
    if torch.is_tensor(leaf) and leaf:is_sharded() then
      local split = {}
      for dim in pairs(leaf:placement()) do split[dim] = dim ~= "mp" and 0 or nil end
      return split
    end
  end
end

--- Returns a function of (first, n) that returns n rows of a leaf of the batch, split over the
--- processes, so that each has its share of every part.
local function reader(leaf, split)
  if not torch.is_tensor(leaf) then return function() return leaf end end
  local whole = leaf:full()
  return function(first, n)
    local rows = whole:narrow(0, first, n)
    return split and native.shard(rows, split) or rows
  end
end

local function is_trained(leaf)
  return torch.is_tensor(leaf) and leaf:is_floating_point()
end

local function clip(gradients, max_grad_norm)
  local squares = 0
  for _, gradient in ipairs(gradients) do
    local rows = gradient:reshape { gradient:size(0), -1 }
    squares = squares + torch.linalg.vector_norm(rows, 2, { 1 }):square()
  end
  local norms = squares:sqrt()
  local factors = (max_grad_norm / (norms + 1e-6)):clamp_max(1)
  for i, gradient in ipairs(gradients) do
    gradients[i] = torch.tensordot(factors, gradient, { 0 }, { 0 })
  end
  return norms
end

local checks = {
  max_grad_norm = { "a number above 0", function(x, o)
    return x > 0 and (x < math.huge or o.noise_multiplier == 0)
  end },
  noise_multiplier = { "a number of at least 0",
    function(x) return x >= 0 and x < math.huge end },
  expected_batch_size = { "a number above 0", function(x) return x > 0 and x < math.huge end },
  micro_batch_size = { "a positive integer", function(x) return x >= 1 and x % 1 == 0 end },
}

local options_of = arguments(where, { micro_batch_size = 64 },
  { "max_grad_norm", "noise_multiplier", "expected_batch_size", "rng" })

local function read(options)
  local o = options_of(options)
  for name, rule in pairs(checks) do
    local value = o[name]
    if type(value) ~= "number" or not rule[2](value, o) then
      fail("%s: %s = %s is not %s", where, name, value, rule[1])
    end
  end
  if o.noise_multiplier > 0 and not o.rng then
    fail("%s: the noise needs rng, the Generator that train_step_fn is given", where)
  end
  return o
end

--- Returns the gradients and `info`, outside autograd's graph.
local function gradients_of(loss, params, batch, o)
  local n = count_rows(batch)
  local leaves, structure = tree.flatten(params)
  local split = split_of(leaves) or split_of(tree.leaves(batch))
  local readers = tree.map(function(leaf) return reader(leaf, split) end, batch)
  local trained, sums, loss_sum, n_clipped = {}, {}, 0, 0
  for i, leaf in ipairs(leaves) do
    if is_trained(leaf) then trained[#trained + 1] = i end
  end
  local each = transforms.vmap(transforms.value_and_grad(loss), { in_dims = { false, 0 } })
  for first = 0, n - 1, o.micro_batch_size do
    local count = math.min(o.micro_batch_size, n - first)
    local losses, part = each(params,
      tree.map(function(rows) return rows(first, count) end, readers))
    local gradients, all = {}, tree.leaves(part)
    for k, i in ipairs(trained) do gradients[k] = all[i] end
    local norms = clip(gradients, o.max_grad_norm)
    for k, gradient in ipairs(gradients) do
      sums[k] = sums[k] and sums[k] + gradient or gradient
    end
    loss_sum = loss_sum + losses:sum()
    n_clipped = n_clipped + norms:gt(o.max_grad_norm):sum()
  end

  local gradients = {}
  for i in ipairs(leaves) do gradients[i] = false end  -- for leaves that are not trained
  for k, i in ipairs(trained) do
    local sum = sums[k] or torch.zeros_like(leaves[i])
    if o.noise_multiplier > 0 then
      local noise = torch.randn(sum.shape,
        { generator = o.rng, dtype = sum.dtype, device = sum.device })
      sum = sum + noise * (o.noise_multiplier * o.max_grad_norm)
    end
    gradients[i] = sum / o.expected_batch_size
  end
  local divisor = math.max(n, 1)
  return tree.unflatten(structure, gradients),
    { loss = loss_sum / divisor, clipped = n_clipped / divisor, n_examples = n }
end

return registry.define("redco.privacy.gradients", [[
gradients(loss, params, batch, {max_grad_norm, noise_multiplier, expected_batch_size, rng = nil, micro_batch_size = 64}) -> gradients, info
Returns differentially private gradients (DP-SGD, arXiv 1607.00133): computes the gradient of each
example, scales it down to max_grad_norm, adds the gradients of all examples and Gaussian noise, and
divides by expected_batch_size. The gradients are a tree like `params`, for the apply_gradients of a
train_step_fn. A batch without examples gives noise only.

`info` has loss and clipped, the mean loss of the examples and the fraction whose gradients were
clipped (0 if there are none), and n_examples, their number. They are not private.

The result is the same on any number of processes: each clips the gradients of its own examples
before they are added, and the noise is added once. `redco.privacy.epsilon` is the cost of a run.
  loss: loss(params, example) returns the loss of one example, which has the tensors of the batch
    without their first dimension
  batch: a tree of tensors with a row for each example; all other values are the same for all
  max_grad_norm: the norm to which the gradient of an example is clipped, over all params
  noise_multiplier: the standard deviation of the noise divided by max_grad_norm; 0 for no noise
  expected_batch_size: the sampling rate times the number of examples
  rng: the Generator for the noise
  micro_batch_size: examples whose gradients are in memory at a time, over all processes]],
function(loss, params, batch, options)
  return torch.no_grad(gradients_of, loss, params, batch, read(options))
end)
