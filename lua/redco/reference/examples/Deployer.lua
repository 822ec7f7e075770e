--- redco.Deployer
local deployer = redco.Deployer {
  seed = 42, n_model_shards = 1, workdir = "workdir",
}
print(deployer.n_processes, deployer.mesh.dp, deployer.mesh.mp)  --> 1  1  1

--- Deployer:alone (after redco.Deployer)
local results = deployer:alone(function(own)
  return { process = deployer.process_id, noise = torch.randn { 3 } }
end)
print(#results, results[1].process, results[1].noise.shape)
--> 1  0  torch.Size([3])

--- Deployer:gen_rng (after redco.Deployer)
local weight = torch.randn({ 10, 64 }, { generator = deployer:gen_rng() })

--- Deployer:get_accumulate_grad_batches (after redco.Deployer)
local n = deployer:get_accumulate_grad_batches {
  global_batch_size = 64, per_device_batch_size = 8,
}
print(n)  --> 8

--- Deployer:get_local_global_micro_batch_size (after redco.Deployer)
local of_device, of_mesh = deployer:get_local_global_micro_batch_size {
  per_device_batch_size = 8,
}
print(of_device, of_mesh)  --> 8  8

--- Deployer:get_lr_schedule_fn (after redco.Deployer)
local schedule = deployer:get_lr_schedule_fn {
  train_size = 1000, per_device_batch_size = 10, n_epochs = 3,
  learning_rate = 1e-3, schedule_type = "linear", warmup_ratio = 0.1,
}
print(schedule(0), schedule(30), schedule(300))  --> 0  0.001  0
local optimizer = redco.optim.adamw { learning_rate = schedule }

--- Deployer:get_sharding_rules (after redco.Deployer)
local params = nn.MLP { 64, 256, 64 }
local function forward(p) return nn.mlp(p, torch.zeros { 4, 64 }) end
local rules = deployer:get_sharding_rules(params, forward, nil, 2)
for _, rule in ipairs(rules) do print(rule[1], rule[2]) end
--> 1.bias    0
--> 1.weight  0
--> 2.bias    replicate
--> 2.weight  1

--- Deployer:load_ckpt (after Deployer:save_ckpt)
local ckpt, info = deployer:load_ckpt { ckpt_dir = "workdir/ckpts/best" }
print(ckpt.params.w.shape, info.step)  --> torch.Size([2, 3])  100

--- Deployer:load_last_ckpt (after Trainer:fit)
local ckpt, info = deployer:load_last_ckpt()  -- nil, nil at the first start
local resumed = redco.Trainer {
  deployer = deployer, collate_fn = redco.data.default_collate,
  loss_fn = loss_fn, optimizer = optimizer,
  params = ckpt.params, opt_state = ckpt.opt_state, last_ckpt_info = info,
}
print(resumed.step, info.epoch_idx)  --> 8  1

--- Deployer:load_params_shape (after Deployer:save_ckpt)
local shapes = deployer:load_params_shape "workdir/ckpts/best"
print(shapes.w.shape, shapes.w.device)  --> torch.Size([2, 3])  meta

--- Deployer:log_histogram
local deployer = redco.Deployer {
  seed = 42, workdir = "workdir", run_tensorboard = true,
}
local params = redco.nn.MLP { 64, 32, 10 }
deployer:log_histogram("params", params, 100)  -- params/1.weight and so on

--- Deployer:log_hparams
local options = { learning_rate = 1e-3, schedule = "cosine", n_layers = 4 }
local deployer = redco.Deployer {
  seed = 42, workdir = "workdir", run_tensorboard = true,
}
deployer:log_hparams(options)

--- Deployer:log_image
local deployer = redco.Deployer {
  seed = 42, workdir = "workdir", run_tensorboard = true,
}
deployer:log_image("sample", torch.rand { 3, 32, 32 }, 100)

--- Deployer:log_info (after redco.Deployer)
deployer:log_info "12 examples have no label"
print(redco.data.read "workdir/log.txt")  --> ... 12 examples have no label

--- Deployer:log_metrics (after redco.Deployer)
deployer:log_metrics({ loss = 0.5, accuracy = 0.75 }, 100)
print(redco.data.jsonl("workdir/metrics.jsonl")[1].accuracy)  --> 0.75

--- Deployer:save_ckpt (after redco.Deployer)
deployer:save_ckpt {
  ckpt_dir = "workdir/ckpts/best", params = { w = torch.ones { 2, 3 } },
  info = { step = 100 },
}

--- Deployer:save_outputs (after redco.Deployer)
local outputs = { { text = "1 + 1 =", answer = "2" } }
deployer:save_outputs(outputs, { desc = "epoch1", step = 100 })
print(redco.data.json("workdir/outputs_epoch1.json")[1].answer)  --> 2
