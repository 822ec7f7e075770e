--- Losses of preferences from the log-probabilities of pairs: DPO and its kin with a reference
--- model, CPO, SimPO and ORPO without.
local arguments = require "redco.arguments"
local checks = require "redco.preference.checks"
local fail = require "redco.fail"
local registry = require "redco.registry"
local torch = require "redco.torch"

local losses = {}

local function minus_logsigmoid(x) return torch.softplus(-x) end

-- The loss of margins x, whose order is right with a probability of 1 - smoothing.
local function smoothed(x, smoothing)
  return minus_logsigmoid(x) * (1 - smoothing) + minus_logsigmoid(-x) * smoothing
end

local function sigmoid(margin, o) return smoothed(o.beta * margin, o.label_smoothing) end

local function hinge(margin, o) return torch.relu(1 - o.beta * margin) end

local function ipo(margin, o) return (margin - 1 / (2 * o.beta)):square() end

-- Rows: `loss(margin, o, chosen, rejected)` is the loss of each pair, where chosen and rejected are
-- the log-ratios of policy and reference, and margin is their difference. With `is_average` the
-- log-probabilities are means over the tokens.
local of_dpo = {
  sigmoid = { loss = sigmoid },
  sigmoid_norm = { loss = sigmoid, is_average = true },
  hinge = { loss = hinge },
  ipo = { loss = ipo, is_average = true },
  robust = { loss = function(margin, o)
    local x, smoothing = o.beta * margin, o.label_smoothing
    return (minus_logsigmoid(x) * (1 - smoothing) - minus_logsigmoid(-x) * smoothing)
      / (1 - 2 * smoothing)
  end },
  exo_pair = { loss = function(margin, o)
    local x, smoothing = o.beta * margin, o.label_smoothing > 0 and o.label_smoothing or 1e-3
    return x:sigmoid() * (-minus_logsigmoid(x) - math.log(1 - smoothing))
      + (-x):sigmoid() * (-minus_logsigmoid(-x) - math.log(smoothing))
  end },
  nca_pair = { loss = function(_, o, chosen, rejected)
    return minus_logsigmoid(o.beta * chosen)
      + 0.5 * (minus_logsigmoid(-o.beta * chosen) + minus_logsigmoid(-o.beta * rejected))
  end },
  sppo_hard = { loss = function(_, o, chosen, rejected)
    return (chosen - 0.5 / o.beta):square() + (rejected + 0.5 / o.beta):square()
  end },
  apo_zero = { loss = function(_, o, chosen, rejected)
    return 1 - (o.beta * chosen):sigmoid() + (o.beta * rejected):sigmoid()
  end },
  apo_down = { loss = function(margin, o, chosen)
    return (o.beta * chosen):sigmoid() + 1 - (o.beta * margin):sigmoid()
  end },
}

-- The same without a reference.
local of_cpo = {
  sigmoid = of_dpo.sigmoid,
  hinge = of_dpo.hinge,
  ipo = of_dpo.ipo,
  simpo = { is_average = true, loss = function(margin, o)
    return sigmoid(margin - o.simpo_gamma / o.beta, o)
  end },
}

local function columns(t) return t:select(1, 0), t:select(1, 1) end

local function check_pairs(where, o, needs_counts)
  checks.tensor(where, "logps", o.logps, "[pairs, 2]")
  checks.wide(where, "logps", o.logps)
  if needs_counts and o.counts == nil then
    fail("%s: counts: %s needs the numbers of tokens, the second result of sequence_logprobs",
      where, needs_counts)
  end
  if o.counts ~= nil then checks.same(where, "counts", o.counts, o.logps, "logps") end
  checks.number(where, o, "beta", 0, math.huge, true)
end

-- The mean over all tokens of the chosen sequences.
local function chosen_nll(o)
  return -o.logps:select(1, 0):sum() / o.counts:select(1, 0):sum():clamp(1)
end

-- The metrics of trl, for rewards [pairs, 2].
local function metrics_of(rewards, logps)
  local chosen, rejected = columns(rewards)
  return {
    ["rewards/chosen"] = chosen:mean(),
    ["rewards/rejected"] = rejected:mean(),
    ["rewards/accuracies"] = chosen:gt(rejected):to(rewards.dtype):mean(),
    ["rewards/margins"] = (chosen - rejected):mean(),
    ["logps/chosen"] = logps:select(1, 0):mean(),
    ["logps/rejected"] = logps:select(1, 1):mean(),
  }
end

local results = [[
Returns what a loss_fn returns: the mean loss of the pairs, their number, and trl's metrics
rewards/chosen, rewards/rejected, rewards/accuracies, rewards/margins, logps/chosen and
logps/rejected.]]

local dpo_options = arguments("preference.dpo",
  { loss_type = "sigmoid", beta = 0.1, label_smoothing = 0 },
  { "logps", "ref_logps", "counts", "rpo_alpha" })

losses.dpo = registry.define("redco.preference.dpo", ([[
dpo{logps [pairs, 2], ref_logps [pairs, 2], counts [pairs, 2] = nil, loss_type = "sigmoid", beta = 0.1, label_smoothing = 0, rpo_alpha: number = nil} -> loss, n, metrics
Computes direct preference optimization (DPO, arXiv 2305.18290). %s
  logps: the log-probabilities of chosen and rejected sequences, the sums of `sequence_logprobs`
  ref_logps: the same of the reference model
  counts: the numbers of their tokens, for a loss_type that averages and for rpo_alpha
  loss_type: "sigmoid", with label_smoothing cDPO; "hinge" (SLiC); "robust" (arXiv 2403.00409);
    "exo_pair"; "nca_pair"; "sppo_hard"; "apo_zero"; "apo_down". "ipo" (arXiv 2310.12036) and
    "sigmoid_norm", which is length-normalised DPO, use means over the tokens
  beta: how much a departure from the reference costs; tau of IPO
  label_smoothing: the probability that a pair is in the wrong order, from 0 to 0.5
  rpo_alpha: the factor of the chosen sequences' mean loss per token, which is added (arXiv
    2404.19733). That is a mean over the tokens of the micro-batch]]):format(results),
function(given)
  local where, o = "preference.dpo", dpo_options(given)
  local row = checks.row(where, "loss_type", of_dpo, o.loss_type)
  check_pairs(where, o, row.is_average and ("loss_type = \"%s\""):format(o.loss_type)
    or o.rpo_alpha and "rpo_alpha")
  checks.same(where, "ref_logps", o.ref_logps, o.logps, "logps")
  checks.wide(where, "ref_logps", o.ref_logps)
  checks.number(where, o, "label_smoothing", 0, o.loss_type == "robust" and 0.499999 or 0.5)
  local logps, reference = o.logps, o.ref_logps:detach()
  if row.is_average then logps, reference = logps / o.counts, reference / o.counts end
  local ratios = logps - reference
  local chosen, rejected = columns(ratios)
  local loss = row.loss(chosen - rejected, o, chosen, rejected):mean()
  local metrics = metrics_of(o.beta * ratios:detach(), logps:detach())
  if o.rpo_alpha then
    checks.number(where, o, "rpo_alpha", 0, math.huge)
    local nll = chosen_nll(o)
    loss, metrics.nll_loss = loss + o.rpo_alpha * nll, nll:detach()
  end
  return loss, o.logps:size(0), metrics
end)

local cpo_options = arguments("preference.cpo",
  { loss_type = "sigmoid", beta = 0.1, label_smoothing = 0, simpo_gamma = 0.5, cpo_alpha = 1 },
  { "logps", "counts" })

losses.cpo = registry.define("redco.preference.cpo", ([[
cpo{logps [pairs, 2], counts [pairs, 2] = nil, loss_type = "sigmoid", beta = 0.1, label_smoothing = 0, simpo_gamma = 0.5, cpo_alpha = 1} -> loss, n, metrics
Computes contrastive preference optimization (CPO, arXiv 2401.08417): DPO without a reference model,
plus cpo_alpha times the mean loss per token of the chosen sequences, the metric nll_loss. %s
  logps: the log-probabilities of chosen and rejected sequences, the sums of `sequence_logprobs`
  counts: the numbers of their tokens. Only "sigmoid" and "hinge" with cpo_alpha = 0 need none
  loss_type: "sigmoid", "hinge", or, with means over the tokens, "ipo" and "simpo". SimPO (arXiv
    2405.14734) is loss_type = "simpo" with cpo_alpha = 0, and beta from 2 to 2.5
  simpo_gamma: the margin of SimPO between the rewards of a pair
nll_loss is a mean over the tokens of the micro-batch.]]):format(results),
function(given)
  local where, o = "preference.cpo", cpo_options(given)
  local row = checks.row(where, "loss_type", of_cpo, o.loss_type)
  checks.number(where, o, "cpo_alpha", 0, math.huge)
  checks.number(where, o, "simpo_gamma", 0, math.huge)
  checks.number(where, o, "label_smoothing", 0, 0.5)
  check_pairs(where, o, row.is_average and ("loss_type = \"%s\""):format(o.loss_type)
    or o.cpo_alpha > 0 and ("cpo_alpha = %s"):format(o.cpo_alpha))
  local logps = row.is_average and o.logps / o.counts or o.logps
  local chosen, rejected = columns(logps)
  local loss = row.loss(chosen - rejected, o, chosen, rejected):mean()
  local metrics = metrics_of(o.beta * logps:detach(), logps:detach())
  metrics.nll_loss = 0
  if o.cpo_alpha > 0 then
    local nll = chosen_nll(o)
    loss, metrics.nll_loss = loss + o.cpo_alpha * nll, nll:detach()
  end
  return loss, o.logps:size(0), metrics
end)

local orpo_options = arguments("preference.orpo", { beta = 0.1 }, { "logps", "counts", "nll_loss" })

losses.orpo = registry.define("redco.preference.orpo", ([[
orpo{logps [pairs, 2], counts [pairs, 2], nll_loss: Tensor = nil, beta = 0.1} -> loss, n, metrics
Computes odds ratio preference optimization (ORPO, arXiv 2403.07691): the loss of the chosen
sequences, plus beta times that of the odds of chosen over rejected ones. It needs no reference model. %s
It adds nll_loss, log_odds_ratio and log_odds_chosen.
  logps: the log-probabilities of chosen and rejected sequences, the sums of `sequence_logprobs`
  counts: the numbers of their tokens
  nll_loss: the loss of the chosen sequences. The default is their mean loss per token over the
    micro-batch; trl's also counts the tokens of the prompt, which `model.loss` can compute
  beta: the factor of the odds ratio, lambda in the paper]]):format(results),
function(given)
  local where, o = "preference.orpo", orpo_options(given)
  check_pairs(where, o, "orpo")
  local nll = o.nll_loss or chosen_nll(o)
  if not torch.is_tensor(nll) or nll:numel() ~= 1 then
    fail("%s: nll_loss: expected a tensor of one element, got %s", where, tostring(nll))
  end
  local logps = o.logps / o.counts
  -- log(p / (1 - p)) of each sequence.
  local odds = logps - torch.log1p(-logps:exp())
  local chosen, rejected = columns(odds)
  local ratio = -minus_logsigmoid(chosen - rejected)
  local metrics = metrics_of(o.beta * logps:detach(), logps:detach())
  metrics.nll_loss = nll:detach()
  metrics.log_odds_ratio = ratio:detach():mean()
  metrics.log_odds_chosen = (chosen - rejected):detach():mean()
  return nll - o.beta * ratio:mean(), o.logps:size(0), metrics
end)

return losses
