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

-- The objective of PPO, clipped if the ratio would make it better.
local function clipped(ratio, a, o)
  local near = ratio:clamp(1 - o.epsilon, 1 + o.epsilon_high)
  if o.delta then ratio = ratio:clamp_max(o.delta) end
  return -torch.minimum(ratio * a, near * a)
end

-- The ratio is a constant weight, at most epsilon_high.
local function weighted(ratio, a, o)
  return -ratio:clamp_max(o.epsilon_high):detach() * a * o.logps
end

-- Half the squared error of values. Values are limited to cliprange_value around the old ones if
-- this makes the error larger.
local function value_terms(o)
  local old, c = o.old_values:detach(), o.cliprange_value
  local returns = o.returns:detach()
  local near = old + (o.values - old):clamp(-c, c)
  local is_clipped = torch.no_grad(function()
    return (near - returns):square():gt((o.values - returns):square())
  end)
  return 0.5 * torch.maximum((o.values - returns):square(), (near - returns):square()), is_clipped
end

-- Rows: `term(ratio, advantages, o)` is the loss of each token or sequence, `ratio` makes the
-- log-ratio of a sequence from those of its tokens, `mean` says how the terms are averaged.
local losses = {
  grpo = { term = clipped, mean = "sequence" },
  dapo = { term = clipped, mean = "token" },
  ppo = { term = clipped, mean = "token" },
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

local options = arguments(where,
  { loss_type = "grpo", beta = 0, vf_coef = 0.1, cliprange_value = 0.2 },
  { "logps", "labels", "advantages", "old_logps", "ref_logps", "sampler_logps", "entropies",
    "values", "old_values", "returns", "delta", "epsilon", "epsilon_high",
    "max_completion_length", "importance_sampling_cap" })

local function check(o, row)
  checks.tensor(where, "logps", o.logps, "[n, length]")
  checks.wide(where, "logps", o.logps)
  checks.same(where, "labels", o.labels, o.logps, "logps")
  if torch.is_tensor(o.advantages) and o.advantages:dim() == 2 and not row.ratio then
    checks.same(where, "advantages", o.advantages, o.logps, "logps")
  else
    checks.tensor(where, "advantages", o.advantages, ("[%d]"):format(o.logps:size(0)))
  end
  if o.values ~= nil and (o.old_values == nil or o.returns == nil) then
    fail("%s: values needs old_values and returns", where)
  end
  checks.number(where, o, "vf_coef", 0, math.huge)
  checks.number(where, o, "cliprange_value", 0, math.huge)
  for _, name in ipairs { "old_logps", "ref_logps", "sampler_logps", "entropies", "values",
    "old_values", "returns" } do
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

-- A metric: amin or amax of the values that count, if there are some. No value is beyond `filler`.
local function extreme(name, values, is_counted, filler)
  local has_some = is_counted:any():to(values.dtype)
  local found = values:masked_fill(is_counted:logical_not(), filler)
  return torch.stack { found[name](found) * has_some, has_some }
end

local function of_sequences(values, mask)
  return values:size(1) == 1 and values or (values * mask):sum(1, true) / mask:sum(1, true):clamp(1)
end

-- Counts the ratios that are outside of the clip range and have no gradient.
local function clip_metrics(o, ratio, mask)
  local dtype, a = mask.dtype, o.advantages
  if o.loss_type == "cispo" then
    local is_clipped = ratio:gt(o.epsilon_high):logical_and(a:gt(0)):to(dtype)
    return { cispo_clip_ratio = counted(is_clipped, mask) }
  end
  local is_low = ratio:lt(1 - o.epsilon):logical_and(a:lt(0)):to(dtype)
  local is_high = ratio:gt(1 + o.epsilon_high):logical_and(a:gt(0)):to(dtype)
  local has_tokens = mask:sum(1, true):gt(0)
  return {
    ["clip_ratio/low_mean"] = counted(is_low, mask),
    ["clip_ratio/low_min"] = extreme("amin", of_sequences(is_low, mask), has_tokens, 1),
    ["clip_ratio/high_mean"] = counted(is_high, mask),
    ["clip_ratio/high_max"] = extreme("amax", of_sequences(is_high, mask), has_tokens, 0),
    ["clip_ratio/region_mean"] = counted(is_low + is_high, mask),
  }
end

-- `found` has those of kl, weight, policy_terms, value_terms and is_clipped_value that are known.
local function metrics_of(o, log_ratio, ratio, found, mask)
  local metrics = clip_metrics(o, ratio, mask)
  metrics.kl = found.kl and counted(found.kl, mask)
  metrics.entropy = o.entropies and counted(o.entropies, mask)
  metrics.logprob_difference = o.old_logps and counted(log_ratio:abs(), mask)
  if found.weight then
    local name, is_counted = "sampling/importance_sampling_ratio/", mask:gt(0)
    metrics[name .. "mean"] = counted(found.weight, mask)
    metrics[name .. "min"] = extreme("amin", found.weight, is_counted, o.importance_sampling_cap)
    metrics[name .. "max"] = extreme("amax", found.weight, is_counted, 0)
  end
  if found.value_terms then
    metrics["loss/policy_avg"] = counted(found.policy_terms:expand_as(mask), mask)
    metrics["loss/value_avg"] = counted(found.value_terms, mask)
    metrics["val/clipfrac_avg"] = counted(found.is_clipped_value:to(mask.dtype), mask)
    metrics["val/ratio"] = counted(log_ratio:exp(), mask)
    metrics["policy/approxkl_avg"] = counted(0.5 * log_ratio:square(), mask)
  end
  return metrics
end

return registry.define("redco.rl.language.loss", [[
loss{logps [n, length], labels [n, length], advantages, old_logps [n, length] = nil,
  ref_logps [n, length] = nil, sampler_logps [n, length] = nil, entropies [n, length] = nil,
  values [n, length] = nil, old_values [n, length] = nil, returns [n, length] = nil,
  loss_type: string = "grpo", beta: number = 0, epsilon: number = 0.2, epsilon_high: number = nil,
  delta = nil, max_completion_length: integer = nil, importance_sampling_cap: number = nil,
  vf_coef: number = 0.1, cliprange_value: number = 0.2} -> loss, weight, metrics
Computes a loss of samples, and returns what a loss_fn returns: the mean, its weight, and trl's
metrics as sums and counts: clip_ratio/low_mean, low_min, high_mean, high_max and region_mean, or
cispo_clip_ratio, and kl and entropy if they are known. logprob_difference is the mean distance of
logps from old_logps: 0 in the first step after sampling. Means over tokens and sequences do not
depend on how a step is split into micro-batches; a minimum or maximum is the mean of those of the
micro-batches.
  logps: the log-probabilities of the labels, from `Model.logprobs`
  labels: the next tokens; -100 where they are not trained: in prompts, padding and answers of tools
  advantages: those of the samples, [n], or of their tokens, [n, length]
  old_logps: logps before the first of several steps with the same samples; by default logps
  ref_logps: those of a reference model, for beta, the factor of the divergence from it. It is
    estimated by exp(ref - logp) - (ref - logp) - 1 at each token
  sampler_logps: those with which the tokens were drawn. With importance_sampling_cap the term of
    each token is multiplied by exp(old_logps - sampler_logps), at most by this number
  entropies: of the distributions, for the metric only
  values: what a critic expects before each label. Half their squared error from `returns`, times
    vf_coef, is added to the term of each token. A value counts no further than cliprange_value from
    old_values if that makes its error larger
  loss_type: "grpo": clipped as in PPO, a mean over the tokens of each sequence, then over sequences;
    "dapo" (arXiv 2503.14476) and "ppo" (arXiv 1707.06347): a mean over all tokens; "dr_grpo" (arXiv
    2503.20783): a sum over tokens divided by sequences times max_completion_length; "gspo" (arXiv
    2507.18071): the ratio is that of a sequence, the geometric mean of those of its tokens; "rloo":
    their product; "cispo" (arXiv 2506.13585): a mean over all tokens, whose ratio, at most
    epsilon_high, is a weight
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
  check(o, row)
  if row.mean == "length" then
    checks.number(where, o, "max_completion_length", 1, math.huge)
  end
  local mask = o.labels:ne(-100):to(o.logps.dtype)
  local counts = mask:sum(1, true):clamp(1)
  o.advantages = o.advantages:to(mask.dtype)
  if o.advantages:dim() == 1 then o.advantages = o.advantages:unsqueeze(1) end
  local old = o.old_logps and o.old_logps:detach() or o.logps:detach()
  local log_ratio = (o.logps - old) * mask
  local of_sequence = row.ratio and row.ratio(log_ratio, mask, counts)
  local ratio = (of_sequence or log_ratio):exp()
  local terms, found = row.term(ratio, o.advantages, o), {}
  if o.importance_sampling_cap then
    found.weight = (old - o.sampler_logps:detach()):exp():clamp_max(o.importance_sampling_cap)
    terms = terms * found.weight
  end
  if o.beta > 0 then
    local distance = (o.ref_logps:detach() - o.logps) * mask
    found.kl = distance:exp() - distance - 1
    terms = terms + o.beta * found.kl
  end
  if o.values ~= nil then
    found.policy_terms = terms
    found.value_terms, found.is_clipped_value = value_terms(o)
    terms = terms + o.vf_coef * found.value_terms
  end
  local loss, total = means[row.mean](terms, mask, counts, o)
  for name, value in pairs(found) do found[name] = value:detach() end
  return loss, total,
    torch.no_grad(metrics_of, o, log_ratio:detach(), ratio:detach(), found, mask)
end)
