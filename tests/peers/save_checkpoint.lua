-- A checkpoint of a GPT-2 after a step: save_checkpoint.lua FOLDER MODEL_SHARDS
local redco = require "redco"

local torch = redco.torch
local deployer = redco.Deployer {
  seed = 1, n_model_shards = tonumber(arg[2]), zero = 3, zero_min_size = 64, workdir = arg[1],
  verbose = false,
}
local model = redco.models.from_config({
  model_type = "gpt2", vocab_size = 37, n_positions = 6, n_embd = 16, n_layer = 2, n_head = 4,
  embd_pdrop = 0, resid_pdrop = 0, attn_pdrop = 0,
}, { generator = torch.Generator(1) })
local examples = {}
for i = 1, 8 do examples[i] = torch.arange(6) + i end
local trainer = redco.Trainer {
  deployer = deployer, params = model.params,
  collate_fn = function(batch)
    local ids = torch.stack(batch)
    return { input_ids = ids, labels = ids }
  end,
  loss_fn = function(_, _, params, batch) return model.loss(params, batch) end,
  optimizer = redco.optim.sgd { learning_rate = 0.1, momentum = 0.9 },
}
trainer:train { examples = examples, per_device_batch_size = 8 / deployer.mesh.dp }
trainer:save_ckpt { ckpt_name = "one_step", epoch_idx = 0 }
