--- redco.rl: environments, and what algorithms of reinforcement learning have in common.
local losses = require "redco.rl.losses"
local registry = require "redco.registry"
local strict = require "redco.strict"

return registry.define("redco.rl", [[
redco.rl
Reinforcement learning: environments as tensors, the advantages of actions and the losses of PPO.
The algorithms are scripts in examples/reinforcement_learning; `redco.data.replay_buffer` keeps
transitions, `redco.distributions` has policies. `redco.rl.language` is for language models.]],
strict("redco.rl", {
  environment = require "redco.rl.environment",
  gae = require "redco.rl.gae",
  language = require "redco.rl.language",
  mujoco = require "redco.rl.mujoco",
  policy_loss = losses.policy_loss,
  value_loss = losses.value_loss,
}))
