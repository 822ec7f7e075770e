--- redco: train and run models on any number of devices with three functions.
local native = require "redco.native"
local registry = require "redco.registry"
local strict = require "redco.strict"
local transforms = require "redco.transforms"

local redco = {
  version = native.version,
  null = native.null,
  Deployer = native.Deployer,
  Trainer = native.Trainer,
  Predictor = native.Predictor,
  shard = native.shard,
  from_stage = native.from_stage,
  parameter = native.parameter,
  sharding_counters = native.sharding_counters,
  Rng = native.Rng,
  Tokenizer = require "redco.tokenizer",
  with_rng = native.with_rng,
  gather_micro_batches = native.gather_micro_batches,
  checkpoint = native.checkpoint,
  options = native.options,
  script_folder = require "redco.script_folder",
  grad = transforms.grad,
  value_and_grad = transforms.value_and_grad,
  vmap = transforms.vmap,
  ordered_table = require "redco.ordered_table",
  torch = require "redco.torch",
  optim = require "redco.optim",
}

for name, value in pairs(redco) do
  if type(value) == "table" then strict("redco." .. name, value) end
end

-- Modules in the files of their names.
local parts = { "augment", "check", "contrastive", "data", "diffusion", "distributions",
  "evaluate", "federated", "help", "lora", "metrics", "models", "nn", "preference", "privacy",
  "quant", "rl", "serve", "tree" }

return registry.define("redco", [[
redco
Trains and runs models on any number of devices. A script defines three functions, collate_fn,
loss_fn and pred_fn, and passes them to three classes: `redco.Deployer`, `redco.Trainer` and
`redco.Predictor`. `redco.version` is the version of this library, such as "0.1.0". `redco.null` is a
null in a list that was read from JSON or Parquet: `list[i] == redco.null`. It is not false. A null
that is no entry of a list is nil.]],
strict("redco", redco, parts, function(name) return require("redco." .. name) end))
