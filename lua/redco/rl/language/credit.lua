--- The advantages of a rollout, and what they need: the tokens' log-probabilities and values by the
--- trainer's forward pass. Functions of a LanguageSampler.
local advantages_of = require "redco.rl.language.advantages"
local check_params = require "redco.generation.check_params"
local checks = require "redco.preference.checks"
local gae = require "redco.rl.language.gae"
local torch = require "redco.torch"

local where = "rl.language.sampler"
local credit = {}

--- Returns the model's parameters among those of the Trainer, as the option `name`, the function
--- `f`, says: all if it is false.
function credit.params_of(self, name, f, params)
  local found = params
  if f then found = f(params) end
  check_params(where .. ": " .. name, self.model, found)
  return found
end

--- Returns the log-probabilities of the labels of a batch, the entropies if asked for, and the
--- critic's values if there is a critic: each [n, length] or nil.
function credit.forward(self, params, batch, has_entropies)
  local inputs = { input_ids = batch.input_ids, labels = batch.labels }
  local logps, _, entropies, hidden = self.model.logprobs(
    credit.params_of(self, "policy", self.policy, params), inputs, { entropy = has_entropies,
      temperature = self.choice.temperature, hidden_states = self.value ~= false })
  if not self.value then return logps, entropies end
  local values = self.value(params, hidden, inputs)
  checks.same(where, "value: its result", values, logps, "labels")
  return logps, entropies, values
end

--- Returns the log-probabilities of the reference model.
function credit.reference_logps(self, reference, params, batch)
  return torch.no_grad(function()
    return (self.model.logprobs(credit.params_of(self, "reference", reference, params),
      { input_ids = batch.input_ids, labels = batch.labels },
      { temperature = self.choice.temperature }))
  end)
end

--- Adds to the tensors of a rollout what the trainer's forward pass makes of them: old_logps,
--- old_values if there is a critic, and ref_logps if rewards need them. Adds metrics of their
--- distance from the sampler.
function credit.score(self, trainer, tensors)
  local numbers = {}
  for i = 1, tensors.input_ids:size(0) do numbers[i] = i end
  local predictor = trainer:get_default_predictor {
    pred_fn = function(_, params, batch)
      local logps, _, values = credit.forward(self, params, batch, false)
      return { old_logps = logps, old_values = values, ref_logps = self.kl_coef > 0
        and credit.reference_logps(self, self.reference, params, batch) or nil }
    end,
  }
  local rows = {}
  for i, pred in ipairs(predictor:predict { examples = numbers, params = trainer.params,
    per_device_batch_size = self.per_device_batch_size, desc = "Scoring" }) do
    for name, value in pairs(pred) do
      rows[name] = rows[name] or {}
      rows[name][i] = value
    end
  end
  for name, list in pairs(rows) do tensors[name] = torch.stack(list) end
  local is_counted = tensors.labels:ne(-100)
  local differences = (tensors.old_logps - tensors.sampler_logps):abs()
    :masked_fill(is_counted:logical_not(), 0):double()
  local name, metrics = "sampling/sampling_logp_difference/", tensors.metrics
  metrics[name .. "mean"] = torch.full_like(metrics.reward,
    (differences:sum() / is_counted:sum():clamp(1)):item())
  metrics[name .. "max"] = torch.full_like(metrics.reward, differences:max():item())
end

-- Returns the penalties [n, length] of the divergence from the reference model.
local function penalties_of(self, tensors)
  local log_ratio = tensors.ref_logps - tensors.old_logps
  local kl = self.kl_estimator == "k1" and -log_ratio or log_ratio:exp() - 1 - log_ratio
  kl = kl * tensors.labels:ne(-100)
  tensors.metrics["objective/kl"] = kl:sum(1):double()
  return -self.kl_coef * kl
end

-- Returns the rewards [n, length] of tokens: that of a sample belongs to its last token that
-- counts.
local function rewards_of_tokens(labels, rewards, penalties)
  local places = torch.arange(labels:size(1)):expand_as(labels)
  local last = places:masked_fill(labels:eq(-100), -1):amax({ 1 }, { keepdim = true })
  return penalties + places:eq(last) * rewards:unsqueeze(1)
end

--- Adds the advantages of the samples, and the returns for a critic.
function credit.add_advantages(self, tensors)
  local rewards = tensors.metrics.reward
  local penalties = tensors.ref_logps and penalties_of(self, tensors)
  if penalties then
    local sums = penalties:sum(1):double()
    tensors.metrics["objective/non_score_reward"] = sums
    tensors.metrics["objective/rlhf_reward"] = rewards + sums
  end
  if self.advantages == "gae" then
    local values = tensors.old_values
    tensors.advantages, tensors.returns = gae {
      values = values, labels = tensors.labels, gamma = self.gamma, lambda = self.lambda,
      whiten_rewards = self.whiten_rewards, rewards = rewards_of_tokens(tensors.labels,
        rewards:to(values.dtype), penalties or torch.zeros_like(values)) }
  else
    local all = penalties and tensors.metrics["objective/rlhf_reward"] or rewards
    tensors.advantages = advantages_of(all:view { -1, self.num_generations },
      { kind = self.advantages }):view { -1 }:float()
  end
  tensors.ref_logps = nil
end

return credit
