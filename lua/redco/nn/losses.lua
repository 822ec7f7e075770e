--- Cross-entropy, from logits or from the input of the last layer.
local arguments = require "redco.arguments"
local native = require "redco.native"
local registry = require "redco.registry"
local torch = require "redco.torch"
local widened = require "redco.nn.widened"

local losses = {}

--- Returns `total` divided by the number of labels that are not ignore_index, and that number.
local function mean(total, labels, ignore_index)
  local count = labels:ne(ignore_index):sum()
  return total / count:clamp(1), count
end

--- The same with the sum of the labels' weights in place of their number.
local function weighted_mean(total, labels, ignore_index, weight)
  local is_ignored = labels:eq(ignore_index):reshape { -1 }
  local of_labels = weight:index_select(0, labels:reshape { -1 }:masked_fill(is_ignored, 0))
  local sum = of_labels:masked_fill(is_ignored, 0):sum()
  return torch.where(sum:gt(0), total / sum, total * 0), sum
end

local cross_entropy = arguments("nn.cross_entropy",
  { ignore_index = -100, label_smoothing = 0 }, { "weight" })
losses.cross_entropy = registry.define("redco.nn.cross_entropy", [[
cross_entropy(logits [..., classes], labels [...], {weight [classes] = nil, ignore_index = -100, label_smoothing = 0}) -> loss, count
Returns the mean cross-entropy over the labels that are not ignore_index, and their number, both as
tensors without dimensions. `labels` are classes, from 0. With class weights, `weight`, it is the
weighted mean, and `count` the sum of the labels' weights. A loss_fn that returns both gets exact
means over micro-batches and processes. The loss is 0 if there is no such label. Logits of less than
32 bits are converted to float32 first.]],
function(logits, labels, options)
  local o = cross_entropy(options)
  local total = torch.cross_entropy_loss(widened(logits):reshape { -1, logits:size(-1) },
    labels:reshape { -1 }, {
      reduction = 2,  -- the sum, by LibTorch's number for it
      weight = o.weight,
      ignore_index = o.ignore_index, label_smoothing = o.label_smoothing,
    })
  if o.weight then return weighted_mean(total, labels, o.ignore_index, o.weight) end
  return mean(total, labels, o.ignore_index)
end)

local fused = arguments("nn.linear_cross_entropy",
  { ignore_index = -100, label_smoothing = 0 }, { "bias" })
losses.linear_cross_entropy = registry.define("redco.nn.linear_cross_entropy", [[
linear_cross_entropy(x [..., in], weight [classes, in], labels [...], {bias [classes] = nil, ignore_index = -100, label_smoothing = 0}) -> loss, count
Computes `cross_entropy` of x weight^T + bias and the labels without holding all logits: they are computed,
used and freed by blocks of rows. Use it for the head of a language model, whose logits would be by
far the largest tensor. It can be differentiated twice; the second derivative holds all logits. On a
GPU, where labels are not checked, one that is no class makes the loss NaN.]],
function(x, weight, labels, options)
  local o = fused(options)
  local total = native.linear_cross_entropy(x, weight, labels, o.ignore_index, o.label_smoothing,
    o.bias)
  return mean(total, labels, o.ignore_index)
end)

local logprobs = arguments("nn.logprobs", { ignore_index = -100 })
losses.logprobs = registry.define("redco.nn.logprobs", [[
logprobs(logits [..., classes], labels [...], {ignore_index = -100}) -> [...]
Returns the log-probability of each label, a class from 0, and 0 for labels equal to ignore_index:
minus the terms of `cross_entropy`.]], function(logits, labels, options)
  local o = logprobs(options)
  local each = torch.cross_entropy_loss(widened(logits):reshape { -1, logits:size(-1) },
    labels:reshape { -1 }, { reduction = 0, ignore_index = o.ignore_index })
  return 0 - each:reshape(labels.shape)
end)

local fused_logprobs = arguments("nn.linear_logprobs", { ignore_index = -100 }, { "bias" })
losses.linear_logprobs = registry.define("redco.nn.linear_logprobs", [[
linear_logprobs(x [..., in], weight [classes, in], labels [...], {bias [classes] = nil, ignore_index = -100}) -> [...]
Computes `logprobs` of x weight^T + bias and the labels without holding all logits, as
`linear_cross_entropy` does. Backward computes the logits again.]],
function(x, weight, labels, options)
  local o = fused_logprobs(options)
  return native.linear_logprobs(x, weight, labels, o.ignore_index, o.bias)
end)

return losses
