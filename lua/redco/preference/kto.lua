--- KTO: a loss of single sequences that are desirable or not.
local arguments = require "redco.arguments"
local checks = require "redco.preference.checks"
local fail = require "redco.fail"
local registry = require "redco.registry"
local torch = require "redco.torch"

local where = "preference.kto"

-- By loss_type: whether rewards are compared with the divergence of the policy from the reference.
local rows = { kto = { uses_kl = true }, apo_zero_unpaired = {} }

local options = arguments(where,
  { loss_type = "kto", beta = 0.1, desirable_weight = 1, undesirable_weight = 1 },
  { "logps", "ref_logps", "desirable", "kl_logps", "ref_kl_logps" })

-- A metric that is a mean over the sequences of one kind: the sum and the number.
local function mean_of(values, is_counted)
  return torch.stack { (values * is_counted):sum(), is_counted:sum() }
end

return registry.define("redco.preference.kto", [[
kto{logps [n], ref_logps [n], desirable [n], kl_logps [n] = nil, ref_kl_logps [n] = nil, loss_type = "kto", beta = 0.1, desirable_weight = 1, undesirable_weight = 1} -> loss, n, metrics
Computes Kahneman-Tversky optimization (KTO, arXiv 2402.01306) of sequences that are desirable or
not, without pairs. Returns what a loss_fn returns: the mean loss of the sequences, their number, and
trl's metrics kl, rewards/chosen, rewards/rejected, logps/chosen and logps/rejected. The last four are
means over the sequences of that kind, and 0 if a step has none.
  logps, ref_logps: the log-probabilities of the sequences, of the policy and the reference model
  desirable: booleans
  kl_logps, ref_kl_logps: those of completions after prompts that are not theirs. The mean of their
    differences over the micro-batch, at least 0, is the metric kl, with which rewards are compared;
    it has no gradient. A step in several micro-batches has several such means
  loss_type: "kto", or "apo_zero_unpaired" (arXiv 2408.06266), which needs no kl_logps
  desirable_weight, undesirable_weight: factors of the losses. Choose them so that their ratio times
    the ratio of the numbers of sequences is between 1 and 4/3]],
function(given)
  local o = options(given)
  local row = checks.row(where, "loss_type", rows, o.loss_type)
  checks.tensor(where, "logps", o.logps, "[n]")
  checks.same(where, "ref_logps", o.ref_logps, o.logps, "logps")
  checks.wide(where, "logps", o.logps)
  checks.wide(where, "ref_logps", o.ref_logps)
  checks.same(where, "desirable", o.desirable, o.logps, "logps")
  checks.number(where, o, "beta", 0, math.huge, true)
  checks.number(where, o, "desirable_weight", 0, math.huge)
  checks.number(where, o, "undesirable_weight", 0, math.huge)
  local kl = torch.zeros_like(o.logps:select(0, 0), { requires_grad = false })
  if row.uses_kl then
    if o.kl_logps == nil then
      fail("%s: kl_logps: loss_type = \"kto\" needs the log-probabilities of completions after "
        .. "prompts that are not theirs", where)
    end
    checks.tensor(where, "kl_logps", o.kl_logps, "[n]")
    checks.same(where, "ref_kl_logps", o.ref_kl_logps, o.kl_logps, "kl_logps")
    kl = (o.kl_logps - o.ref_kl_logps):detach():mean():clamp(0)
  end
  local is_desirable = o.desirable:to "bool"
  local ratios = o.logps - o.ref_logps:detach()
  local losses = torch.where(is_desirable,
    o.desirable_weight * (1 - (o.beta * (ratios - kl)):sigmoid()),
    o.undesirable_weight * (1 - (o.beta * (kl - ratios)):sigmoid()))
  local rewards, logps = o.beta * ratios:detach(), o.logps:detach()
  local of_chosen = is_desirable:to(logps.dtype)
  local of_rejected = 1 - of_chosen
  return losses:mean(), o.logps:size(0), {
    kl = kl,
    ["rewards/chosen"] = mean_of(rewards, of_chosen),
    ["rewards/rejected"] = mean_of(rewards, of_rejected),
    ["logps/chosen"] = mean_of(logps, of_chosen),
    ["logps/rejected"] = mean_of(logps, of_rejected),
  }
end)
