-- Trains a model of models/ on rows of one length, for `redco-lua plan`.
local redco = require "redco"
local o = redco.options {
  model = "llama-7b", length = 1024, batch = 1, global_batch_size = 0, n_model_shards = 1, zero = 0,
  dtype = "float32", compute_dtype = "float32", recompute = "none", sequence_parallel = false,
  n_context_shards = 1, n_expert_shards = 1, n_pipeline_stages = 1, offload_optimizer = false,
}
local torch = redco.torch
local folder = debug.getinfo(1, "S").source:match "^@(.*)/[^/]*$" or "."
local deployer = redco.Deployer { seed = 1, n_model_shards = o.n_model_shards, zero = o.zero,
  n_context_shards = o.n_context_shards, n_expert_shards = o.n_expert_shards,
  n_pipeline_stages = o.n_pipeline_stages, sequence_parallel = o.sequence_parallel }
local model = redco.models.from_config(("%s/models/%s"):format(folder, o.model),
  { dtype = o.dtype })
local trainer = redco.Trainer {
  deployer = deployer, params = model.params, loss_fn = model.loss_fn,
  optimizer = redco.optim.adamw { learning_rate = 1e-5 }, compute_dtype = o.compute_dtype,
  recompute = o.recompute, offload_optimizer = o.offload_optimizer,
  collate_fn = redco.data.default_collate,
}
local rows = redco.data.dataset(1000000, function()
  local ids = torch.full({ o.length }, 7, { dtype = "int64" })
  return { input_ids = ids, labels = ids }
end)
trainer:fit {
  train_examples = rows, per_device_batch_size = o.batch, n_epochs = 1,
  global_batch_size = o.global_batch_size > 0 and o.global_batch_size or nil,
}
