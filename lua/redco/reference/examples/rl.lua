--- redco.rl
local env = redco.rl.environment("CartPole-v1", { n_envs = 16, seed = 1 })
while env.n_episodes < 100 do  -- with random actions
  env:step(torch.randint(env.n_actions, { env.n_envs }))
end
print(env:mean_return(100) < 50) --> true

--- redco.rl.environment
local pendulum = redco.rl.environment("Pendulum-v1", { n_envs = 4 })
print(pendulum, pendulum.observation_size, pendulum.action_high[1])
--> Environment(Pendulum-v1, 4 copies)  3  2
local walk = redco.rl.environment {  -- to the right, from somewhere in 0..1
  observation_size = 1, n_actions = 2, max_episode_steps = 100,
  start = function(uniform) return uniform(1) end,
  step = function(states, actions)
    states = states + actions:unsqueeze(1)
    return states, actions, states:squeeze(1):gt(5)
  end,
}
for _ = 1, 10 do walk:step(torch.ones({ 1 }, { dtype = "int64" })) end
print(walk.n_episodes, walk:mean_return(1)) --> 2  5

--- Environment
local env = redco.rl.environment("CartPole-v1", { n_envs = 2, seed = 1 })
print(env.observations.shape, env.n_actions, env.max_episode_steps)
--> torch.Size([2, 4])  2  500

--- Environment:mean_return (after Environment)
print(env:mean_return(10))  --> 0

--- Environment:reset (after Environment)
local observations = env:reset()
print(observations.shape, observations:abs():max():item() <= 0.05)
--> torch.Size([2, 4])  true

--- Environment:state_dict (after Environment)
torch.save(env:state_dict(), "environment.safetensors")
local again = redco.rl.environment("CartPole-v1",
  { n_envs = 2, state = torch.load "environment.safetensors" })
print(again.observations:equal(env.observations))  --> true

--- Environment:step (after Environment)
local observations, rewards, terminated, truncated, final_observations =
  env:step(torch.tensor { 0, 1 })
print(observations.shape, rewards, terminated:any():item())
--> torch.Size([2, 4])  tensor([1., 1.])  false
print(truncated:any():item(), final_observations:equal(observations))
--> false  true

--- redco.rl.gae
local advantages, returns = redco.rl.gae {
  rewards = torch.tensor { 1.0, 1.0, 1.5 },
  values = torch.tensor { 0.5, 0.5, 0.5 },
  next_values = torch.tensor { 0.5, 0.5, 0.5 },
  terminated = torch.tensor { false, true, false },
  gamma = 0.5, lambda = 1,
}
print(advantages, returns)
--> tensor([1.0000, 0.5000, 1.2500])  tensor([1.5000, 1.0000, 1.7500])

--- redco.rl.mujoco
local function step(before, after, actions, seconds)
  local moved = after.positions:select(1, 0) - before.positions:select(1, 0)
  return moved / seconds - 0.1 * actions:square():sum(1)
end
local function environment()
  return redco.rl.environment(redco.rl.mujoco {
    library = "libmujoco.so.3.17.0", model = "half_cheetah.xml",
    frame_skip = 5, step = step,
  }, { n_envs = 16, seed = 1 })
end
print(pcall(environment))  -- where there is no such library
--> false  ... cannot load MuJoCo: ...

--- redco.rl.policy_loss
local loss, metrics = redco.rl.policy_loss {
  log_probs = torch.tensor { -0.5, -1.0 },
  old_log_probs = torch.tensor { -1.0, -1.0 },
  advantages = torch.tensor { 1.0, -1.0 },
}
print(loss, metrics.clip_fraction)  --> tensor(-0.1000)  tensor(0.5000)

--- redco.rl.value_loss
local loss = redco.rl.value_loss {
  values = torch.tensor { 0.5, 2.0 }, returns = torch.tensor { 1.5, 2.0 },
}
print(loss)  --> tensor(0.2500)

--- redco.rl.language
local model = redco.models.from_pretrained "gpt2"
local tokenizer = redco.Tokenizer.from_pretrained "gpt2"
local deployer = redco.Deployer { seed = 1, verbose = false }
local sampler = redco.rl.language.sampler {
  model = model, tokenizer = tokenizer, deployer = deployer,
  examples = { { prompt = "a red" }, { prompt = "hello" } },
  rewards = { short = function(text) return -#text end },
  num_prompts = 2, num_generations = 4, max_completion_length = 6,
}

--- redco.rl.language.sampler (after redco.rl.language)
local of_two = redco.rl.language.sampler {
  model = model, tokenizer = tokenizer, max_completion_length = 6,
  examples = { { prompt = "2 + 3 =", answer = "5" } },
  rewards = {
    right = function(text, example)
      return text:find(example.answer, 1, true) ~= nil
    end,
    short = function(text) return -#text end,
  },
  reward_weights = { short = 0.01 },
}

--- LanguageSampler (after redco.rl.language)
local trainer
trainer = redco.Trainer {
  deployer = deployer, params = model.params,
  optimizer = redco.optim.adamw { learning_rate = 1e-3 },
  custom_state = sampler.state, collate_fn = sampler.collate_fn,
  loss_fn = sampler:loss_fn { loss_type = "dapo", epsilon_high = 0.28 },
}
local function rollout(epoch) return sampler:rollout(trainer, epoch) end
trainer:fit {
  train_examples = rollout, per_device_batch_size = 8, n_epochs = 3,
}
print(trainer.step, sampler.state.epoch_idx)  --> 3  2

--- LanguageSampler:evaluate (after redco.rl.language)
local result = sampler:evaluate(model.params, { { prompt = "a red" } })
print(#result.samples, result.reward == result.rewards.short)  --> 1  true

--- LanguageSampler:loss_fn (after redco.rl.language)
local loss_fn = sampler:loss_fn {
  loss_type = "grpo", beta = 0.04, reference = redco.lora.base,
}

--- LanguageSampler:rollout (after LanguageSampler)
print(#sampler:rollout(trainer, 3))  --> 8

--- redco.rl.language.advantages
local rewards = torch.tensor { { 1.5, 0.5, 0.5, 1.5 }, { 1, 1, 1, 1 } }
print(redco.rl.language.advantages(rewards, { kind = "rloo" }))
--> tensor([[ 0.6667, -0.6667, -0.6667,  0.6667],
-->         [ 0.0000,  0.0000,  0.0000,  0.0000]])

--- redco.rl.language.gae
local advantages, returns = redco.rl.language.gae {
  labels = torch.tensor { { -100, 5, 6, 7 } },
  rewards = torch.tensor { { 0, 0, 0, 1 } },
  values = torch.tensor { { 0, 0.5, 0.5, 0.75 } }, whiten = false,
}
print(advantages)  --> tensor([[0.0000, 0.4631, 0.4875, 0.2500]])
print(returns)  --> tensor([[0.0000, 0.9631, 0.9875, 1.0000]])

--- redco.rl.language.loss
local loss, weight, metrics = redco.rl.language.loss {
  logps = torch.tensor { { 0, -1.0, -2.0 }, { -1.0, -0.5, 0 } },
  old_logps = torch.tensor { { 0, -1.5, -2.0 }, { -1.0, -0.7, 0 } },
  labels = torch.tensor { { -100, 5, 6 }, { 7, 8, -100 } },
  advantages = torch.tensor { 1.5, -0.5 }, loss_type = "dapo",
}
print(loss:item() < 0, weight:item(), metrics["clip_ratio/high_mean"])
--> true  4  tensor([1., 4.])
