-- A run of six steps. tests/cases/formats/N/run is its work folder after three of them, as format N
-- had it, and N/after its last checkpoint.
local redco = require "redco"
local torch, optim = redco.torch, redco.optim

local o = redco.options {
  workdir = "", n_steps = 1, sizes = { 1, 1 }, shuffle = false,
  optimizer = { kind = "sgd", rate = 0.5 },
}
local deployer = redco.Deployer { seed = 1, workdir = o.workdir, verbose = false }
local ckpt, info = deployer:load_last_ckpt()
local n_in, n_out = unpack(o.sizes)
local first = { layer = {
  weight = torch.arange(n_in * n_out):view(n_in, n_out) / 10, bias = torch.zeros { n_out },
} }
local schedule = optim.cosine_schedule {
  peak_value = o.optimizer.rate, warmup_steps = 2, total_steps = 8,
}
local trainer = redco.Trainer {
  deployer = deployer, params = ckpt and ckpt.params or first,
  opt_state = ckpt and ckpt.opt_state, last_ckpt_info = info,
  optimizer = optim.chain {
    optim.clip_by_global_norm(1), optim[o.optimizer.kind] { learning_rate = schedule },
    optim.ema { decay = 0.9 },
  },
  collate_fn = function(examples) return { x = torch.tensor(examples):float() / 10 } end,
  loss_fn = function(_, _, p, batch)
    local y = torch.dropout(batch.x:matmul(p.layer.weight) + p.layer.bias, 0.5, true)
    return (y - 1):square():mean()
  end,
}
local examples = {}
for i = 1, 8 do examples[i] = { i, i % 3, i % 5, 1 } end
trainer:fit {
  train_examples = examples, per_device_batch_size = 2, n_epochs = 2, max_steps = o.n_steps,
  shuffle = o.shuffle, save_ckpt_every_k_steps = 3, save_in_background = false,
}
