--- redco.preference: losses of preferences, rewards and distillation, for any loss_fn.
local pairs_losses = require "redco.preference.pairs"
local registry = require "redco.registry"
local strict = require "redco.strict"

return registry.define("redco.preference", [[
redco.preference
Learning from preferences: losses as functions of log-probabilities, which a loss_fn calls and
returns, the log-probabilities of sequences, and a collate_fn for pairs. The names of options and
metrics, and the defaults, are trl's.]], strict("redco.preference", {
  collate = require "redco.preference.collate",
  cpo = pairs_losses.cpo,
  distillation = require "redco.preference.distillation",
  dpo = pairs_losses.dpo,
  kto = require "redco.preference.kto",
  orpo = pairs_losses.orpo,
  reward = require "redco.preference.reward",
  sequence_logprobs = require "redco.preference.sequence_logprobs",
}))
