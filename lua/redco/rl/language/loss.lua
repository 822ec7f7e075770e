--- Losses of policies that write tokens.
local arguments = require "redco.arguments"
local checks = require "redco.preference.checks"
local fail = require "redco.fail"
local registry = require "redco.registry"
local torch = require "redco.torch"

local where = "rl.language.loss"

-- The log-ratio of a sequence [n, 1] from those of its tokens.
local function mean_ratio(log_ratio, _, counts) return log_ratio:sum(1, true) / counts end
local function whole_ratio(log_ratio) return log_ratio:sum(1, true) end

-- The objective of PPO, clipped where the ratio makes it better.
local function clipped(ratio, a, o)
  local near = ratio:clamp(1 - o.epsilon, 1 + o.epsilon_high)
  if o.delta then ratio = ratio:clamp_max(o.delta) end
  return -torch.minimum(ratio * a, near * a)
end

-- The ratio is a constant weight, as far as epsilon_high.
local function weighted(ratio, a, o)
  return -ratio:clamp_max(o.epsilon_high):detach() * a * o.logps
end

-- Rows: `term(ratio, advantages, o)` is the loss of each token or sequence, `ratio` makes the
-- log-ratio of a sequence from those of its tokens, `mean` says how the terms are averaged.
local losses = {
  grpo = { term = clipped, mean = "sequence" },
  dapo = { term = clipped, mean = "token" },
  dr_grpo = { term = clipped, mean = "length" },
  gspo = { term = clipped, ratio = mean_ratio, mean = "sequence" },
  rloo = { term = clipped, ratio = whole_ratio, mean = "sequence" },
  cispo = { term = weighted, mean = "token" },
}

-- Ways to average terms [n, T] or [n, 1]. Each returns the mean and its weight.
local means = {}

function means.sequence(terms, mask, counts)
  return (terms * mask / counts):sum() / mask:size(0), mask:size(0)
end

function means.token(terms, mask)
  local count = mask:sum():clamp(1)
  return (terms * mask):sum() / count, count
end

function means.length(terms, mask, _, o)
  return (terms * mask):sum() / (mask:size(0) * o.max_completion_length), mask:size(0)
end

local options = arguments(where, { loss_type = "grpo", beta = 0 },
  { "logps", "labels", "advantages", "old_logps", "ref_logps", "sampler_logps", "entropies",
    "delta", "epsilon", "epsilon_high", "max_completion_length", "importance_sampling_cap" })

local function check(o)
  checks.tensor(where, "logps", o.logps, "[n, length]")
  checks.wide(where, "logps", o.logps)
  checks.same(where, "labels", o.labels, o.logps, "logps")
  checks.tensor(where, "advantages", o.advantages, ("[%d]"):format(o.logps:size(0)))
  for _, name in ipairs { "old_logps", "ref_logps", "sampler_logps", "entropies" } do
    if o[name] ~= nil then
      checks.same(where, name, o[name], o.logps, "logps")
      checks.wide(where, name, o[name])
    end
  end
  checks.number(where, o, "beta", 0, math.huge)
  checks.number(where, o, "epsilon", 0, math.huge)
  checks.number(where, o, "epsilon_high", 0, math.huge)
  if o.delta then checks.number(where, o, "delta", 1, math.huge, true) end
  if o.beta > 0 and o.ref_logps == nil then
    fail("%s: ref_logps: beta = %s needs the log-probabilities of a reference model", where, o.beta)
  end
  if o.importance_sampling_cap then
    checks.number(where, o, "importance_sampling_cap", 0, math.huge, true)
    if o.sampler_logps == nil or o.old_logps == nil then
      fail("%s: importance_sampling_cap needs sampler_logps and old_logps", where)
    end
  end
end

-- A metric: the sum over tokens or sequences and their number.
local function counted(values, mask)
  if values:size(1) == 1 then
    return torch.stack { values:sum(), torch.full_like(values:sum(), values:size(0)) }
  end
  return torch.stack { (values * mask):sum(), mask:sum() }
end

local function metrics_of(o, log_ratio, ratio, kl, weight, mask)
  local dtype, a = mask.dtype, o.advantages:unsqueeze(1)
  local is_low = ratio:lt(1 - o.epsilon):logical_and(a:lt(0)):to(dtype)
  local is_high = ratio:gt(1 + o.epsilon_high):logical_and(a:gt(0)):to(dtype)
  return {
    kl = kl and counted(kl, mask),
    entropy = o.entropies and counted(o.entropies, mask),
    ["clip_ratio/low_mean"] = o.loss_type ~= "cispo" and counted(is_low, mask) or nil,
    ["clip_ratio/high_mean"] = o.loss_type ~= "cispo" and counted(is_high, mask) or nil,
    ["clip_ratio/region_mean"] = o.loss_type ~= "cispo" and counted(is_low + is_high, mask) or nil,
    cispo_clip_ratio = o.loss_type == "cispo" and counted(
      ratio:gt(o.epsilon_high):logical_and(a:gt(0)):to(dtype), mask) or nil,
    ["sampling/importance_sampling_ratio/mean"] = weight and counted(weight, mask),
    logprob_difference = o.old_logps and counted(log_ratio:abs(), mask),
  }
end

return registry.define("redco.rl.language.loss", [[
loss{logps [n, length], labels [n, length], advantages [n], old_logps [n, length] = nil,
  ref_logps [n, length] = nil, sampler_logps [n, length] = nil, entropies [n, length] = nil,
  loss_type: string = "grpo", beta: number = 0, epsilon: number = 0.2, epsilon_high: number = nil,
  delta = nil, max_completion_length: integer = nil, importance_sampling_cap: number = nil} -> loss, weight, metrics
Computes a loss of samples, and returns what a loss_fn returns: the mean, its weight, and trl's
metrics as sums and counts: clip_ratio/low_mean, clip_ratio/high_mean and clip_ratio/region_mean, or
cispo_clip_ratio, and kl and entropy if they are known. logprob_difference is the mean distance of
logps from old_logps: 0 in the first step after sampling. Means over tokens and sequences do not
depend on how a step is split into micro-batches.
  logps: the log-probabilities of the labels, from `Model.logprobs`
  labels: the next tokens; -100 where they are not trained: in prompts, padding and answers of tools
  advantages: those of the samples
  old_logps: logps before the first of several steps with the same samples; by default logps
  ref_logps: those of a reference model, for beta, the factor of the divergence from it. It is
    estimated by exp(ref - logp) - (ref - logp) - 1 at each token
  sampler_logps: those with which the tokens were drawn. With importance_sampling_cap the term of
    each token is multiplied by exp(old_logps - sampler_logps), at most by this number
  entropies: of the distributions, for the metric only
  loss_type: "grpo": clipped as in PPO, a mean over the tokens of each sequence, then over sequences;
    "dapo" (arXiv 2503.14476): a mean over all tokens; "dr_grpo" (arXiv 2503.20783): a sum over
    tokens divided by sequences times max_completion_length; "gspo" (arXiv 2507.18071): the ratio is
    that of a sequence, the geometric mean of those of its tokens; "rloo": their product; "cispo"
    (arXiv 2506.13585): a mean over all tokens, whose ratio, at most epsilon_high, is a weight
  epsilon, epsilon_high: ratios count from 1 - epsilon to 1 + epsilon_high, which is epsilon by
    default; of "cispo" it is 5
  delta: an upper limit, above 1 + epsilon_high, of ratios of negative advantages]],
function(given)
  local o, all = options(given), {}
  for name, value in pairs(o) do all[name] = value end
  o = all
  local row = checks.row(where, "loss_type", losses, o.loss_type)
  o.epsilon = o.epsilon or 0.2
  o.epsilon_high = o.epsilon_high or (o.loss_type == "cispo" and 5 or o.epsilon)
  check(o)
  if row.mean == "length" then
    checks.number(where, o, "max_completion_length", 1, math.huge)
  end
  local is_counted = o.labels:ne(-100)
  local mask = is_counted:to(o.logps.dtype)
  local counts = mask:sum(1, true):clamp(1)
  local old = o.old_logps and o.old_logps:detach() or o.logps:detach()
  local log_ratio = (o.logps - old) * mask
  local of_sequence = row.ratio and row.ratio(log_ratio, mask, counts)
  local ratio = (of_sequence or log_ratio):exp()
  local terms = row.term(ratio, o.advantages:to(mask.dtype):unsqueeze(1), o)
  local weight
  if o.importance_sampling_cap then
    weight = (old - o.sampler_logps:detach()):exp():clamp_max(o.importance_sampling_cap)
    terms = terms * weight
  end
  local kl
  if o.beta > 0 then
    local distance = (o.ref_logps:detach() - o.logps) * mask
    kl = distance:exp() - distance - 1
    terms = terms + o.beta * kl
  end
  local loss, total = means[row.mean](terms, mask, counts, o)
  return loss, total, torch.no_grad(metrics_of, o, log_ratio:detach(), ratio:detach(),
    kl and kl:detach(), weight, mask)
end)
