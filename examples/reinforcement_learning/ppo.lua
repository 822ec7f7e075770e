-- PPO (arXiv 1707.06347): a policy learns from its own rollouts in many copies of an environment.
local redco = require "redco"
local torch, nn, rl, tree = redco.torch, redco.nn, redco.rl, redco.tree
local distributions = redco.distributions

local o = redco.options {
  environment = "CartPole-v1",
  workdir = "workdir",
  resume = false,  -- continue from the newest checkpoint of workdir, if there is one
  seed = 1, n_model_shards = 1, zero = 0,
  total_steps = 500000,  -- of all copies of the environment
  max_steps = 0,  -- more than 0 ends the run after so many optimizer steps
  n_envs = 128, rollout_length = 32,
  update_epochs = 2, minibatch_size = 512,
  hidden_size = 64,
  learning_rate = 3e-3,  -- falls linearly to 0
  gamma = 0.99, gae_lambda = 0.95,
  clip = 0.2, entropy_weight = 0.01, value_weight = 0.5, max_grad_norm = 0.5,
}

local deployer = redco.Deployer {
  seed = o.seed, n_model_shards = o.n_model_shards, zero = o.zero, workdir = o.workdir }
local ckpt, last = unpack(o.resume and { deployer:load_last_ckpt() } or {})
local custom = ckpt and ckpt.custom_state or { epoch_idx = -1 }
local env = rl.environment(o.environment,
  { n_envs = o.n_envs, seed = o.seed, state = custom.environment })
local action_size = env.n_actions or #env.action_low

local function new_mlp(n_outputs, gain)
  local generator = deployer:gen_rng()
  local params = nn.MLP({ env.observation_size, o.hidden_size, o.hidden_size, n_outputs })
  for i, layer in ipairs(params) do
    nn.init.orthogonal_(layer.weight,
      { gain = i < 3 and math.sqrt(2) or gain, generator = generator })
    layer.bias:zero_()
  end
  return params
end

local function policy_of(params, observations)
  local output = nn.mlp(params.actor, observations, { activation = torch.tanh })
  if env.n_actions then return distributions.Categorical { logits = output } end
  return distributions.Independent(distributions.Normal(output, params.log_std:exp()), 1)
end

local function value_of(params, observations)
  return nn.mlp(params.critic, observations, { activation = torch.tanh }):squeeze(-1)
end

-- Lets the policy act; every process gets the same transitions, [rollout_length * n_envs, ...].
local function rollout(params, rng)
  local rows = {}
  for t = 1, o.rollout_length do
    local observations = env.observations
    local policy = policy_of(params, observations)
    local actions = policy:sample { rng = rng }
    local _, rewards, terminated, truncated, next_observations = env:step(actions)
    rows[t] = { observations = observations, actions = actions, rewards = rewards,
      log_probs = policy:log_prob(actions), terminated = terminated, truncated = truncated,
      next_observations = next_observations }
  end
  local steps = redco.data.default_collate(rows)
  steps.values = value_of(params, steps.observations)
  steps.advantages, steps.returns = rl.gae {
    rewards = steps.rewards, values = steps.values,
    next_values = value_of(params, steps.next_observations),
    terminated = steps.terminated, truncated = steps.truncated,
    gamma = o.gamma, lambda = o.gae_lambda,
  }
  return tree.map(function(t) return t:flatten(0, 1) end, steps)
end

local n_transitions = o.rollout_length * o.n_envs
local n_rollouts = math.ceil(o.total_steps / n_transitions)

local trainer
trainer = redco.Trainer {
  deployer = deployer, custom_state = custom, last_ckpt_info = last,
  params = ckpt and ckpt.params or {
    actor = new_mlp(action_size, 0.01), critic = new_mlp(1, 1),
    log_std = env.action_low and torch.zeros { action_size },
  },
  opt_state = ckpt and ckpt.opt_state,
  optimizer = redco.optim.chain {
    redco.optim.clip_by_global_norm(o.max_grad_norm),
    redco.optim.adam {
      eps = 1e-5,
      learning_rate = redco.optim.linear_schedule {
        init_value = o.learning_rate, peak_value = o.learning_rate,
        total_steps = n_rollouts * o.update_epochs * n_transitions / o.minibatch_size,
      },
    },
  },
  collate_fn = function(numbers)
    local chosen = torch.tensor(numbers):remainder(n_transitions)
    return tree.map(function(t) return t:index_select(0, chosen) end, custom.rollout)
  end,
  loss_fn = function(_, _, params, batch)
    local policy = policy_of(params, batch.observations)
    local advantages = batch.advantages - batch.advantages:mean()
    local loss, metrics = rl.policy_loss {
      log_probs = policy:log_prob(batch.actions), old_log_probs = batch.log_probs,
      advantages = advantages / (advantages:std() + 1e-8), clip = o.clip,
    }
    metrics.value_loss = rl.value_loss {
      values = value_of(params, batch.observations), returns = batch.returns,
      old_values = batch.values, clip = o.clip,
    }
    metrics.policy_loss, metrics.entropy = loss, policy:entropy():mean()
    metrics.episode_return = env:mean_return(100)
    loss = loss + o.value_weight * metrics.value_loss - o.entropy_weight * metrics.entropy
    return loss, batch.advantages:size(0), metrics
  end,
}

trainer:fit {
  train_examples = function(epoch_idx)
    if custom.epoch_idx < epoch_idx then
      local params = tree.map(function(param) return param:full():detach() end, trainer.params)
      custom.rollout = torch.no_grad(rollout, params, redco.Rng(o.seed):fold_in(epoch_idx))
      custom.environment, custom.epoch_idx = env:state_dict(), epoch_idx
    end
    return redco.data.dataset(o.update_epochs * n_transitions, function(i) return i end)
  end,
  per_device_batch_size = o.minibatch_size / deployer.mesh.dp,
  n_epochs = n_rollouts, max_steps = o.max_steps, save_last_ckpt = true,
}
deployer:log_info(("mean return of the last 100 episodes: %.1f"):format(
  env:mean_return(100)))
torch.save(trainer.params, o.workdir .. "/model.safetensors")
