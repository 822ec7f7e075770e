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
