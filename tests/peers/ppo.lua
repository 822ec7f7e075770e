-- ppo.lua FOLDER: computes the advantages, the losses of PPO, their metrics and the gradients of
-- the cases of FOLDER/jobs.json, for ppo_peer.py.
local redco = require "redco"

local language, nn, torch = redco.rl.language, redco.nn, redco.torch
local folder = arg[1]
local jobs = redco.data.json(folder .. "/jobs.json")

local function model_of(kind)
  return redco.models.from_pretrained(folder .. "/" .. kind, { dtype = "float64" })
end

for _, job in ipairs(jobs.cases) do
  local o, given = job.options, torch.load(("%s/%s.given.safetensors"):format(folder, job.name))
  local policy, reference, critic = model_of "policy", model_of "reference", model_of "critic"
  local n, length = given.ids:size(0), given.ids:size(1)
  local labels = torch.full({ n, length }, -100, { dtype = "int64" })
  labels[{ {}, { jobs.n_prompt - 1, -1 } }] = given.ids[{ {}, { jobs.n_prompt } }]
  local batch = { input_ids = given.ids, labels = labels }
  local mask = labels:ne(-100)
  local old_logps = torch.zeros({ n, length }, { dtype = "float64" })
  old_logps[{ {}, { jobs.n_prompt - 1, -1 } }] = given.old_logps

  local kl = torch.no_grad(function()
    local ref_logps = (reference.logprobs(reference.params, batch))
    local ratio = ref_logps - old_logps
    return (o.kl_estimator == "k1" and -ratio or ratio:exp() - 1 - ratio) * mask
  end)
  local rewards = -o.kl_coef * kl
  rewards[{ {}, length - 2 }] = rewards[{ {}, length - 2 }] + given.scores
  local advantages, returns = language.gae { rewards = rewards, values = given.old_values,
    labels = labels, gamma = o.gamma, lambda = o.lam, whiten_rewards = o.whiten_rewards }

  local metrics
  local loss, grads = redco.value_and_grad(function(params)
    local logps, _, entropies, hidden = policy.logprobs(params.policy, batch,
      { entropy = true, hidden_states = true })
    if not job.is_head then hidden = critic.hidden_states(params.critic, batch) end
    local value, _, more = language.loss { logps = logps, labels = labels, entropies = entropies,
      advantages = advantages, old_logps = old_logps, loss_type = "ppo", epsilon = o.cliprange,
      values = nn.linear(params.value, hidden):squeeze(-1), old_values = given.old_values,
      returns = returns, vf_coef = o.vf_coef, cliprange_value = o.cliprange_value }
    metrics = more
    return value
  end)({ policy = policy.params, value = { weight = given.weight },
    critic = not job.is_head and critic.params or nil })
  metrics["objective/kl"] = torch.stack { kl:sum(1):sum(), torch.tensor(n, { dtype = "float64" }) }
  torch.save({ loss = loss, grads = grads, metrics = metrics },
    ("%s/%s.safetensors"):format(folder, job.name))
end
