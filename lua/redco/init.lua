--- redco: train and run models on any number of devices with three functions.
local native = require "redco.native"
local registry = require "redco.registry"
local strict = require "redco.strict"
local transforms = require "redco.transforms"

local redco = {
  version = native.version,
  Deployer = native.Deployer,
  Trainer = native.Trainer,
  Predictor = native.Predictor,
  shard = native.shard,
  parameter = native.parameter,
  sharding_counters = native.sharding_counters,
  Rng = native.Rng,
  Tokenizer = native.Tokenizer,
  with_rng = native.with_rng,
  checkpoint = native.checkpoint,
  options = native.options,
  script_folder = require "redco.script_folder",
  grad = transforms.grad,
  value_and_grad = transforms.value_and_grad,
  vmap = transforms.vmap,
  ordered_table = require "redco.ordered_table",
  torch = require "redco.torch",
  nn = require "redco.nn",
  optim = require "redco.optim",
  federated = require "redco.federated",
  privacy = require "redco.privacy",
  rl = require "redco.rl",
  tree = require "redco.tree",
  models = require "redco.models",
  diffusion = require "redco.diffusion",
  lora = require "redco.lora",
  data = require "redco.data",
  metrics = require "redco.metrics",
  distributions = require "redco.distributions",
  augment = require "redco.augment",
  help = require "redco.help",
}

strict("redco.nn.init", redco.nn.init)
for name, value in pairs(redco) do
  if type(value) == "table" then strict("redco." .. name, value) end
end

return registry.define("redco", [[
redco
Trains and runs models on any number of devices. A script defines three functions, collate_fn,
loss_fn and pred_fn, and passes them to three classes: `redco.Deployer`, `redco.Trainer` and
`redco.Predictor`. `redco.version` is the version of this library, such as "0.1.0".]],
strict("redco", redco))
