-- Logs what an event file can hold, from the step arg[2] on, into the folder arg[1].
local redco = require "redco"
local torch = redco.torch
local workdir, first = arg[1], tonumber(arg[2])

local deployer = redco.Deployer { seed = 0, workdir = workdir, run_tensorboard = true }
deployer:log_info(("a | b\nc | d, from %d"):format(first), { title = "Setting" })
local function collate(examples)
  return { x = torch.tensor(examples) }
end
local trainer = redco.Trainer {
  deployer = deployer, collate_fn = collate, step = first,
  params = { w = torch.zeros { 1 } },
  loss_fn = function(_, _, params, batch) return (params.w * batch.x - 1):pow(2):mean() end,
  optimizer = redco.optim.sgd { learning_rate = 0.125 },
}
trainer:fit {
  train_examples = { 1, 1, 1, 1 }, per_device_batch_size = 1, n_epochs = 1,
  eval_examples = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 },
  eval_predictor = trainer:get_default_predictor {
    pred_fn = function(_, _, batch) return batch.x * 2 end,
  },
  eval_metric_fn = function(examples, preds) return { last = preds[#examples]:item() } end,
}
deployer:log_hparams { rate = 0.125, rule = "sgd", nesterov = false }
deployer:log_histogram("weights", { a = torch.arange(101) / 10, b = torch.full({ 3 }, 2.5) },
  first + 4)
deployer:log_histogram("holes", torch.tensor { 1, 0 / 0, 3 }, first + 4)
deployer:log_histogram("nothing", torch.tensor { 0 / 0 }, first + 4)
deployer:log_metrics({ ["own/name"] = 1 }, first + 4)
deployer:log_metrics({ odd = 0 / 0, large = 2 ^ 80 }, first + 4)
deployer:log_image("grey", torch.arange(256):view({ 16, 16 }):to "uint8", first + 4)
deployer:log_image("colour", torch.linspace(0, 1, 48):view { 3, 4, 4 }, first + 4)
deployer:log_image("clear", torch.zeros { 4, 2, 5 }, first + 4)
deployer:log_info("stop\240", { title = "End", step = first + 4 })
