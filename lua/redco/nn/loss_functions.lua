--- The losses of torch.nn besides cross-entropy, with `reduction` by name.
local arguments = require "redco.arguments"
local fail = require "redco.fail"
local native = require "redco.native"
local registry = require "redco.registry"
local torch = require "redco.torch"

local losses = {}

local reductions = { none = 0, mean = 1, sum = 2 }  -- LibTorch's numbers

local function number_of(where, reduction)
  return reductions[reduction]
    or fail("%s: reduction: expected \"mean\", \"sum\" or \"none\", got %s", where,
      reduction)
end

local function shape_of(t) return table.concat(t.shape, ", ") end

-- LibTorch broadcasts [n] and [n, 1] to n * n terms, which nobody means.
local function check_same_shape(where, first, second, names)
  for i, t in ipairs { first, second } do
    if not torch.is_tensor(t) then
      fail("%s: %s: expected a tensor, got %s", where, names[i], native.describe(t))
    end
  end
  if shape_of(first) ~= shape_of(second) then
    fail("%s: %s has shape [%s], %s has [%s]; they must be equal", where, names[1],
      shape_of(first), names[2], shape_of(second))
  end
end

local input_target = { "input", "target" }

-- Rows: the shape of the arguments in the text, named arguments with defaults as text and value,
-- those without default, what it does, and how to call LibTorch. `same` lists the tensors that must
-- have one shape, by default input and target.
local function define(name, row)
  local defaults = { reduction = "mean" }
  local shown = {}
  for _, pair in ipairs(row.defaults or {}) do
    defaults[pair[1]] = pair[2]
    shown[#shown + 1] = pair[1] .. " = " .. tostring(pair[2])
  end
  for _, optional in ipairs(row.optional or {}) do
    shown[#shown + 1] = optional .. " = nil"
  end
  shown[#shown + 1] = 'reduction = "mean"'
  local use = arguments("nn." .. name, defaults, row.optional)
  local where = "nn." .. name
  losses[name] = registry.define("redco.nn." .. name, ("%s(%s, {%s}) -> %s\n%s"):format(name,
    row.arguments, table.concat(shown, ", "), row.result or "Tensor", row.text),
  function(...)
    local n = row.n or 2
    local given = { ... }
    local o = use(given[n + 1])
    if row.same ~= false then
      check_same_shape(where, given[1], given[2], row.same or input_target)
    end
    -- kl_div has a fourth reduction.
    local reduction = row.reduce and o.reduction or number_of(where, o.reduction)
    return row.apply(o, reduction, unpack(given, 1, n))
  end)
end

local elementwise = "input [...], target like input"

define("l1_loss", { arguments = elementwise, text = "Computes |input - target|.",
  apply = function(_, reduction, x, y) return torch.l1_loss(x, y, reduction) end })

define("mse_loss", { arguments = elementwise, text = "Computes (input - target)^2.",
  apply = function(_, reduction, x, y) return torch.mse_loss(x, y, reduction) end })

define("smooth_l1_loss", { arguments = elementwise, defaults = { { "beta", 1 } }, text = [[
Computes 0.5 d^2 / beta where d = |input - target| is less than beta, and d - 0.5 beta elsewhere.]],
  apply = function(o, reduction, x, y) return torch.smooth_l1_loss(x, y, reduction, o.beta) end })

define("huber_loss", { arguments = elementwise, defaults = { { "delta", 1 } }, text = [[
Computes 0.5 d^2 where d = |input - target| is less than delta, and delta (d - 0.5 delta) elsewhere:
Huber, 1964.]],
  apply = function(o, reduction, x, y) return torch.huber_loss(x, y, reduction, o.delta) end })

define("soft_margin_loss", { arguments = elementwise, text = [[
Computes log(1 + exp(-target * input)) for targets 1 and -1.]],
  apply = function(_, reduction, x, y) return torch.soft_margin_loss(x, y, reduction) end })

define("binary_cross_entropy", { arguments = elementwise, optional = { "weight" }, text = [[
Computes -(target log(input) + (1 - target) log(1 - input)) of probabilities, each times `weight`.
Prefer `binary_cross_entropy_with_logits`, which is exact for large logits.]],
  apply = function(o, reduction, x, y)
    return torch.binary_cross_entropy(x, y, o.weight, reduction)
  end })

define("binary_cross_entropy_with_logits", { arguments = elementwise,
  optional = { "weight", "pos_weight" }, text = [[
Computes `binary_cross_entropy` of sigmoid(input). `pos_weight` multiplies the terms of positive
targets.]],
  apply = function(o, reduction, x, y)
    return torch.binary_cross_entropy_with_logits(x, y, o.weight, o.pos_weight, reduction)
  end })

define("nll_loss", { arguments = "input [batch, classes, ...], target [batch, ...]", same = false,
  defaults = { { "ignore_index", -100 } }, optional = { "weight" }, text = [[
Computes minus the log-probability, in `input`, of each target class. Targets equal to ignore_index
do not count. `weight` [classes] weighs the classes. `cross_entropy` starts from logits.]],
  apply = function(o, reduction, x, y)
    return torch.nll_loss_nd(x, y, o.weight, reduction, o.ignore_index)
  end })

define("kl_div", { arguments = elementwise, defaults = { { "log_target", false } },
  reduce = true, text = [[
Computes target (log(target) - input), with log-probabilities as `input` and probabilities as
`target`, or log-probabilities with log_target. reduction = "batchmean" is the sum divided by the
size of the first dimension, the mathematical divergence; "mean" divides by all elements.]],
  apply = function(o, reduction, x, y)
    if reduction == "batchmean" then
      return torch.kl_div(x, y, reductions.sum, { log_target = o.log_target }) / x:size(0)
    end
    return torch.kl_div(x, y, number_of("nn.kl_div", reduction), { log_target = o.log_target })
  end })

define("poisson_nll_loss", { arguments = elementwise,
  defaults = { { "log_input", true }, { "full", false }, { "eps", 1e-8 } }, text = [[
Computes exp(input) - target * input, or with log_input = false, input - target log(input + eps).
`full` adds Stirling's approximation of log(target!) for targets above 1.]],
  apply = function(o, reduction, x, y)
    return torch.poisson_nll_loss(x, y, o.log_input, o.full, o.eps, reduction)
  end })

define("gaussian_nll_loss", { arguments = elementwise .. ", var like input", n = 3,
  defaults = { { "full", false }, { "eps", 1e-6 } }, text = [[
Computes 0.5 (log(var) + (input - target)^2 / var), with var clamped to at least eps. `full` adds
0.5 log(2 pi).]],
  apply = function(o, reduction, x, y, var)
    check_same_shape("nn.gaussian_nll_loss", x, var, { "input", "var" })
    -- The clamp has no gradient, as in PyTorch.
    local at_least = var + (var:detach():clamp(o.eps) - var:detach())
    local terms = 0.5 * (at_least:log() + (x - y):square() / at_least)
    if o.full then terms = terms + 0.5 * math.log(2 * math.pi) end
    return reduction == 0 and terms or reduction == 1 and terms:mean() or terms:sum()
  end })

define("hinge_embedding_loss", { arguments = elementwise, defaults = { { "margin", 1 } }, text = [[
Computes input for targets 1, and max(0, margin - input) for targets -1.]],
  apply = function(o, reduction, x, y)
    return torch.hinge_embedding_loss(x, y, o.margin, reduction)
  end })

define("margin_ranking_loss", { arguments = "input1 [batch], input2 [batch], target [batch]", n = 3,
  same = { "input1", "input2" }, defaults = { { "margin", 0 } }, text = [[
Computes max(0, -target * (input1 - input2) + margin): a target of 1 ranks input1 higher, -1
input2.]],
  apply = function(o, reduction, x, y, target)
    check_same_shape("nn.margin_ranking_loss", x, target, { "input1", "target" })
    return torch.margin_ranking_loss(x, y, target, o.margin, reduction)
  end })

define("cosine_embedding_loss", {
  arguments = "input1 [batch, n], input2 [batch, n], target [batch]", n = 3, same = { "input1", "input2" }, defaults = { { "margin", 0 } }, text = [[
Computes 1 - cos(input1, input2) for targets 1, and max(0, cos(input1, input2) - margin) for
targets -1.]],
  apply = function(o, reduction, x, y, target)
    return torch.cosine_embedding_loss(x, y, target, o.margin, reduction)
  end })

define("triplet_margin_loss", {
  arguments = "anchor [batch, n], positive [batch, n], negative [batch, n]", n = 3,
  same = { "anchor", "positive" },
  defaults = { { "margin", 1 }, { "p", 2 }, { "eps", 1e-6 }, { "swap", false } }, text = [[
Computes max(0, d(anchor, positive) - d(anchor, negative) + margin), with the distance d of norm p.
With `swap`, the lesser of d(anchor, negative) and d(positive, negative) counts.]],
  apply = function(o, reduction, anchor, positive, negative)
    check_same_shape("nn.triplet_margin_loss", anchor, negative, { "anchor", "negative" })
    return torch.triplet_margin_loss(anchor, positive, negative, o.margin, o.p, o.eps, o.swap,
      reduction)
  end })

define("multi_margin_loss", { arguments = "input [batch, classes], target [batch]", same = false,
  defaults = { { "p", 1 }, { "margin", 1 } }, optional = { "weight" }, text = [[
Computes, for each example, the mean over the other classes of max(0, margin - input[target] +
input[class])^p.]],
  apply = function(o, reduction, x, y)
    return torch.multi_margin_loss(x, y, o.p, o.margin, o.weight, reduction)
  end })

define("multilabel_margin_loss", { arguments = elementwise, text = [[
Computes a hinge loss between the classes of an example and all others. Each row of `target` lists
the example's classes, followed by -1.]],
  apply = function(_, reduction, x, y) return torch.multilabel_margin_loss(x, y, reduction) end })

define("multilabel_soft_margin_loss", { arguments = "input [batch, classes], target like input",
  optional = { "weight" }, text = [[
Computes the mean over the classes of `binary_cross_entropy_with_logits`, each times `weight`.]],
  apply = function(o, reduction, x, y)
    local terms = torch.binary_cross_entropy_with_logits(x, y, nil, nil, 0)
    if o.weight then terms = terms * o.weight end
    terms = terms:mean(-1)
    return reduction == 0 and terms or reduction == 1 and terms:mean() or terms:sum()
  end })

local function as_lengths(lengths)
  return torch.is_tensor(lengths) and lengths or torch.tensor(lengths)
end

define("ctc_loss", {
  arguments = "log_probs [length, batch, classes], targets [batch, n], "
    .. "input_lengths [batch], target_lengths [batch]",
  n = 4, same = false, defaults = { { "blank", 0 }, { "zero_infinity", false } }, text = [[
Computes the connectionist temporal classification: Graves et al., 2006. "mean" divides each loss
by its target's length first. zero_infinity makes infinite losses, of targets that are too long, and
their gradients 0. The lengths are tensors or lists.]],
  apply = function(o, reduction, log_probs, targets, input_lengths, target_lengths)
    return torch.ctc_loss(log_probs, targets, as_lengths(input_lengths),
      as_lengths(target_lengths), o.blank, reduction, o.zero_infinity)
  end })

return losses
