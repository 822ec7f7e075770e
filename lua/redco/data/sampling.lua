--- Samples of data sets, a new one for each epoch: by weights, by Poisson's scheme, and mixtures.
local arguments = require "redco.arguments"
local check_integer = require "redco.check_integer"
local dataset = require "redco.data.dataset"
local fail = require "redco.fail"
local native = require "redco.native"
local registry = require "redco.registry"
local torch = require "redco.torch"

local sampling = {}

-- The generator of an epoch. It depends on nothing else, so that a resumed run draws the same.
local function generator_of(seed, epoch_idx)
  return native.Rng(seed):fold_in(epoch_idx or 0)
end

-- The examples at `places`, a tensor counted from 0.
local function at_places(examples, places)
  places = places:long()
  return dataset.new(places:size(0), function(i) return examples[places[i - 1]:item() + 1] end)
end

local function check_examples(where, examples)
  if type(examples) ~= "table" and type(examples) ~= "userdata" then
    fail("%s: expected a list or a data set, got %s", where, native.describe(examples))
  end
  if #examples == 0 then fail("%s: there are no examples", where) end
end

-- Returns weights as a float64 tensor and their sum.
local function check_weights(where, weights, count, what)
  if not torch.is_tensor(weights) then
    if type(weights) ~= "table" then
      fail("%s: weights: expected a list or a tensor of numbers, got %s", where,
        native.describe(weights))
    end
    for i, weight in ipairs(weights) do
      if type(weight) ~= "number" then
        fail("%s: weights: entry %d is a %s, expected a number", where, i, type(weight))
      end
    end
  end
  local tensor = torch.is_tensor(weights) and weights:cpu():double()
    or torch.tensor(weights, { dtype = "float64" })
  if tensor:dim() ~= 1 or tensor:size(0) ~= count then
    fail("%s: weights: expected %.0f numbers, one for each %s, got [%s]", where, count, what,
      table.concat(tensor.shape, ", "))
  end
  local bad = tensor:isfinite():logical_and(tensor:ge(0)):logical_not():nonzero()
  if bad:size(0) > 0 then
    local i = bad[0][0]:item()
    fail("%s: weights: entry %.0f is %g, expected a finite number of at least 0", where, i + 1,
      tensor[i]:item())
  end
  local total = tensor:sum():item()
  if total == 0 then fail("%s: weights: all are 0, so nothing can be drawn", where) end
  return tensor, total
end

local weighted = arguments("data.weighted_sampler", { replacement = true, seed = 0 },
  { "num_samples" })
sampling.weighted_sampler = registry.define("redco.data.weighted_sampler", [[
weighted_sampler(examples, weights: list of numbers or Tensor, {num_samples = #examples, replacement = true, seed = 0}) -> function(epoch_idx) -> Dataset
Returns a function to be used as train_examples of `Trainer:fit`: for each epoch it draws
num_samples examples with probabilities in proportion to their weights, a list or a tensor with one
for each example. Without replacement an example is drawn at most once. A draw depends on the seed
and the epoch only. Weight 1 / (number of examples of a class) balances classes.]],
function(examples, weights, options)
  local where = "data.weighted_sampler"
  local o = weighted(options)
  check_examples(where, examples)
  local tensor, total = check_weights(where, weights, #examples, "example")
  local count = o.num_samples or #examples
  check_integer(where, "num_samples", count, 1)
  local n_possible = tensor:gt(0):sum():item()
  if not o.replacement and count > n_possible then
    fail("%s: num_samples = %.0f: without replacement only the %.0f examples with a weight above 0 "
      .. "can be drawn", where, count, n_possible)
  end
  local ends = tensor:cumsum(0)
  local last = tensor:gt(0):nonzero():max():item()
  return function(epoch_idx)
    local rng = generator_of(o.seed, epoch_idx)
    if not o.replacement then
      -- The first arrivals of processes with these rates (Efraimidis and Spirakis, 2006).
      local times = torch.empty({ #examples }, { dtype = "float64" })
        :exponential_(1, { generator = rng }) / tensor
      return at_places(examples, times:argsort():narrow(0, 0, count))
    end
    local drawn = torch.rand({ count }, { generator = rng, dtype = "float64" }) * total
    return at_places(examples, torch.searchsorted(ends, drawn, { right = true }):clamp(0, last))
  end
end)

local poisson = arguments("data.poisson_sampler", { seed = 0 }, { "rate" })
sampling.poisson_sampler = registry.define("redco.data.poisson_sampler", [[
poisson_sampler(examples, {rate, seed = 0}) -> function(step) -> Dataset
Returns a function that includes each example with probability `rate`, independently of the others:
the sampling that the accounting of differentially private training assumes. The number of examples
differs between calls, with the mean rate * #examples, and may be 0: the Trainer refuses a data set
without examples, so skip such a step or add only noise in it. A draw depends on the seed and the
number of the step only. For one optimizer step per draw, give it as train_examples to `Trainer:fit`
with one epoch per step, and per_device_batch_size so large that a draw always fits one batch.]],
function(examples, options)
  local where = "data.poisson_sampler"
  local o = poisson(options)
  check_examples(where, examples)
  if type(o.rate) ~= "number" or not (o.rate > 0 and o.rate <= 1) then
    fail("%s: rate: expected a probability above 0 and at most 1, got %s", where, o.rate)
  end
  return function(step)
    local drawn = torch.rand({ #examples },
      { generator = generator_of(o.seed, step), dtype = "float64" })
    return at_places(examples, drawn:lt(o.rate):nonzero():view { -1 })
  end
end)

-- Divides `count` in proportion to the weights; the largest remainders are rounded up.
local function shares_of(weights, total, count)
  local shares, order, left = {}, {}, count
  for i, weight in ipairs(weights) do
    local exact = count * weight / total
    shares[i] = math.floor(exact)
    left = left - shares[i]
    order[i] = { i, exact - shares[i] }
  end
  table.sort(order, function(a, b)
    if a[2] ~= b[2] then return a[2] > b[2] end
    return a[1] < b[1]
  end)
  for i = 1, left do shares[order[i][1]] = shares[order[i][1]] + 1 end
  return shares
end

local mixed = arguments("data.mixture", { seed = 0 }, { "weights", "num_samples" })
sampling.mixture = registry.define("redco.data.mixture", [[
mixture(sets: list, {weights: list of numbers, num_samples, seed = 0}) -> function(epoch_idx) -> Dataset
Returns a function to be used as train_examples of `Trainer:fit`: each epoch has num_samples
examples of several lists or data sets, in proportion to the weights. It goes through each set in a random
order, a new one for each pass, and continues in the next epoch where it stopped: a small set with a
large weight is repeated, a large one is not used up in one epoch. `Trainer:fit` shuffles the
epoch.]], function(sets, options)
  local where = "data.mixture"
  local o = mixed(options)
  if type(sets) ~= "table" or #sets == 0 then
    fail("%s: expected a list of data sets, got %s", where,
      type(sets) == "table" and "an empty one" or "a " .. type(sets))
  end
  for i, set in ipairs(sets) do check_examples(("%s: set %d"):format(where, i), set) end
  local weights, total = check_weights(where, o.weights, #sets, "set")
  local count = o.num_samples
  check_integer(where, "num_samples", count, 1)
  local shares, ends, sum = shares_of(weights:tolist(), total, count), {}, 0
  for i, share in ipairs(shares) do
    sum = sum + share
    ends[i] = sum
    local weight = weights[i - 1]:item()
    if share == 0 and weight > 0 then
      fail("%s: set %d would never be used: its weight is %g of %g, less than one example of "
        .. "num_samples = %.0f", where, i, weight, total, count)
    end
  end

  -- The order of set number `i` in one pass.
  local function order_of(i, pass)
    return torch.randperm(#sets[i], { generator = native.Rng(o.seed):fold_in(i):fold_in(pass) })
  end

  return function(epoch_idx)
    local orders = {}  -- by set and pass, as far as the epoch needs them
    return dataset.new(count, function(place)
      local i = 1
      while ends[i] < place do i = i + 1 end
      local at = (epoch_idx or 0) * shares[i] + place - (ends[i] - shares[i]) - 1
      local pass = math.floor(at / #sets[i])
      orders[i] = orders[i] or {}
      orders[i][pass] = orders[i][pass] or order_of(i, pass)
      return sets[i][orders[i][pass][at % #sets[i]]:item() + 1]
    end)
  end
end)

return sampling
