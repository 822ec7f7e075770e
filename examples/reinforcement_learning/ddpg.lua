-- DDPG (arXiv 1509.02971): an actor learns from a critic, and both from a buffer of transitions.
local redco = require "redco"
local torch, nn, rl, tree = redco.torch, redco.nn, redco.rl, redco.tree

local o = redco.options {
  environment = "Pendulum-v1",  -- one with continuous actions, or a script that returns one
  workdir = "workdir",
  resume = false,  -- continue from the newest checkpoint of workdir, if there is one
  seed = 1, n_model_shards = 1, zero = 0,
  n_episodes = 100,
  max_steps = 0,  -- more than 0 ends the run after so many updates
  warm_up = 5,  -- of them: the first, with random actions
  updates_per_episode = 200, batch_size = 64, capacity = 20000,
  policy_frequency = 2,  -- updates of the critic for one of the actor and of the targets
  hidden_size = 64,
  actor_learning_rate = 1e-3, critic_learning_rate = 2e-3,
  gamma = 0.98, tau = 0.02,
  noise = 0.1,  -- of actions, as a part of their range
}

local deployer = redco.Deployer {
  seed = o.seed, n_model_shards = o.n_model_shards, zero = o.zero, workdir = o.workdir }
local ckpt, last = unpack(o.resume and { deployer:load_last_ckpt() } or {})
local custom = ckpt and ckpt.custom_state or { epoch_idx = -1 }
local facts = o.environment:match "%.lua$" and dofile(o.environment) or o.environment
local env = rl.environment(facts, { seed = o.seed, state = custom.environment })
if not env.action_low then error(o.environment .. " has discrete actions: use ppo.lua", 0) end
local low, high = torch.tensor(env.action_low):float(), torch.tensor(env.action_high):float()
local middle, range = (high + low) / 2, (high - low) / 2

local function act(params, observations)
  return middle + range * nn.mlp(params.actor, observations):tanh()
end

local function judge(params, observations, actions)
  return nn.mlp(params.critic, torch.cat({ observations, actions }, -1)):squeeze(-1)
end

local generator = deployer:gen_rng()
local function new_mlp(n_inputs, n_outputs)
  return nn.MLP({ n_inputs, o.hidden_size, o.hidden_size, n_outputs }, { generator = generator })
end

local params = ckpt and ckpt.params or {
  actor = new_mlp(env.observation_size, #env.action_low),
  critic = new_mlp(env.observation_size + #env.action_low, 1),
}

-- The parameters as plain tensors.
local function whole(now)
  return tree.map(function(param) return param:full():detach() end, now)
end

custom.target = custom.target or tree.map(torch.clone, whole(params))

local buffer = redco.data.replay_buffer(custom.buffer and { state = custom.buffer } or {
  capacity = o.capacity, example = {
    observations = env.observations[0], actions = middle, rewards = torch.zeros {},
    next_observations = env.observations[0], terminated = torch.zeros {} } })

-- Plays an episode; every process plays the same.
local function play(now, rng, is_random)
  local n_before = env.n_episodes
  while env.n_episodes == n_before do
    local observations = env.observations
    local actions = act(now, observations)
    if is_random then
      actions = middle + range * (2 * torch.rand(actions.shape, { generator = rng }) - 1)
    else
      actions = actions + o.noise * range * torch.randn(actions.shape, { generator = rng })
      actions = torch.minimum(torch.maximum(actions, low), high)
    end
    local _, rewards, terminated, _, next_observations = env:step(actions)
    buffer:add { observations = observations, actions = actions, rewards = rewards,
      next_observations = next_observations, terminated = terminated:float() }
  end
end

local function critic_loss(p, batch)
  local goal = torch.no_grad(function()
    local value = judge(custom.target, batch.next_observations,
      act(custom.target, batch.next_observations))
    return batch.rewards + o.gamma * (1 - batch.terminated) * value
  end)
  return (judge(p, batch.observations, batch.actions) - goal):square():mean()
end

local function actor_loss(p, batch)
  return -judge(p, batch.observations, act(p, batch.observations)):mean()
end

local function train_step_fn(_, state, batch, defaults)
  local metrics = { episode_return = env:mean_return(10) }
  local loss, gradients = defaults.value_and_grad(function(p) return critic_loss(p, batch) end)
  metrics.loss = loss
  defaults.apply_gradients { critic = gradients.critic }
  if state.step % o.policy_frequency == 0 then
    metrics.actor_loss, gradients = defaults.value_and_grad(function(p)
      return actor_loss(p, batch)
    end)
    defaults.apply_gradients { actor = gradients.actor }
    tree.map(function(target, param) target:lerp_(param, o.tau) end, custom.target,
      whole(state.params))
  end
  return metrics
end

local trainer
trainer = redco.Trainer {
  deployer = deployer, params = params, custom_state = custom, last_ckpt_info = last,
  opt_state = ckpt and ckpt.opt_state, train_step_fn = train_step_fn,
  loss_fn = function(_, _, p, batch) return critic_loss(p, batch) + actor_loss(p, batch) end,
  optimizer = redco.optim.multi {
    { "actor.*", redco.optim.adam { learning_rate = o.actor_learning_rate } },
    { "critic.*", redco.optim.adam { learning_rate = o.critic_learning_rate } },
  },
  collate_fn = function(numbers)
    local chosen = torch.tensor(numbers)
    return tree.map(function(t) return t:index_select(0, chosen) end, buffer.tensors)
  end,
}

trainer:fit {
  -- An epoch is an episode and the updates after it.
  train_examples = function(epoch_idx)
    local rng = redco.Rng(o.seed):fold_in(epoch_idx)
    if custom.epoch_idx < epoch_idx then
      for i = 1, epoch_idx == 0 and o.warm_up or 1 do
        torch.no_grad(play, whole(trainer.params), rng:fold_in(i), epoch_idx == 0)
      end
      custom.environment, custom.buffer = env:state_dict(), buffer:state_dict()
      custom.epoch_idx = epoch_idx
    end
    local n = o.batch_size * o.updates_per_episode
    return torch.randint(buffer.size, { n }, { generator = rng }):tolist()
  end,
  per_device_batch_size = o.batch_size / deployer.mesh.dp,
  n_epochs = o.n_episodes - o.warm_up + 1, max_steps = o.max_steps, save_last_ckpt = true,
}
deployer:log_info(("mean return of the last 10 episodes: %.1f"):format(env:mean_return(10)))
torch.save(trainer.params, o.workdir .. "/model.safetensors")
