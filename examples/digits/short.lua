-- An MLP learns 8 x 8 digits. It gets more than 96 % of the held-out ones right.
local redco = require "redco"
local torch, nn = redco.torch, redco.nn

local rows = redco.data.loadtxt(redco.script_folder() .. "data/digits.csv")  -- 64 pixels, a label
local train, held_out = redco.data.split(rows:unbind(0), { every = 5 })
local deployer = redco.Deployer { seed = 42 }

local trainer = redco.Trainer {
  deployer = deployer,
  collate_fn = function(examples)
    local batch = torch.stack(examples)
    return { images = batch:narrow(1, 0, 64) / 16, labels = batch:select(1, 64):long() }
  end,
  loss_fn = function(rng, state, params, batch, is_training)
    return nn.cross_entropy(nn.mlp(params, batch.images), batch.labels)
  end,
  params = nn.MLP({ 64, 128, 10 }, { generator = deployer:gen_rng() }),
  optimizer = redco.optim.adamw { learning_rate = 3e-3 },
}
trainer:fit { train_examples = train, per_device_batch_size = 32, n_epochs = 20 }

local predictor = trainer:get_default_predictor {
  pred_fn = function(rng, params, batch) return nn.mlp(params, batch.images):argmax(-1) end,
}
local digits = predictor:predict {
  examples = held_out, params = trainer.params, per_device_batch_size = 256,
}
local accuracy = redco.metrics.accuracy(torch.stack(digits), torch.stack(held_out):select(1, 64))
deployer:log_info(("%.1f %%"):format(100 * accuracy), { title = "Accuracy" })
