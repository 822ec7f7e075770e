--- redco.rl.language: reinforcement learning of language models from rewards.
local registry = require "redco.registry"
local strict = require "redco.strict"

return registry.define("redco.rl.language", [[
redco.rl.language
Reinforcement learning of language models from rewards that a program can check: a sampler whose
completions a Trainer learns from, advantages, and losses for any loss_fn. The names of options and
metrics are trl's.]], strict("redco.rl.language", {
  advantages = require "redco.rl.language.advantages",
  gae = require "redco.rl.language.gae",
  loss = require "redco.rl.language.loss",
  sampler = require "redco.rl.language.sampler",
}))
