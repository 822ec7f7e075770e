--- redco.privacy: differentially private training, and what it costs.
local accountants = require "redco.privacy.accountants"
local registry = require "redco.registry"
local strict = require "redco.strict"

return registry.define("redco.privacy", [[
redco.privacy
Differentially private training: gradients that are clipped example by example and have noise, and
the privacy budget that a run spends.]], strict("redco.privacy", {
  epsilon = accountants.epsilon,
  gradients = require "redco.privacy.gradients",
  noise_multiplier = accountants.noise_multiplier,
}))
