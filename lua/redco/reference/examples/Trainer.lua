--- redco.Trainer
local deployer = redco.Deployer { seed = 42, workdir = "workdir" }
local examples = redco.data.dataset(64, function(i)
  return { x = torch.tensor { i / 64, 1 - i / 64 }, label = i % 2 }
end)
local function loss_fn(rng, state, params, batch, is_training)
  return nn.cross_entropy(nn.mlp(params, batch.x), batch.label)
end
local optimizer = redco.optim.adamw { learning_rate = 1e-2 }
local params = nn.MLP({ 2, 8, 2 }, { generator = deployer:gen_rng() })
local trainer = redco.Trainer {
  deployer = deployer, collate_fn = redco.data.default_collate,
  loss_fn = loss_fn, params = params, optimizer = optimizer,
}

--- Trainer:eval_loss (after redco.Trainer)
local loss = trainer:eval_loss {
  examples = examples, per_device_batch_size = 16,
}
print(("%.2f"):format(loss))  --> 0.70

--- Trainer:fit (after redco.Trainer)
trainer:fit {
  train_examples = examples, per_device_batch_size = 16, n_epochs = 2,
  eval_examples = examples, save_argmin_ckpt_by_metrics = { "loss" },
}
print(trainer.step)  --> 8

--- Trainer:get_default_predictor (after redco.Trainer)
local predictor = trainer:get_default_predictor {
  pred_fn = function(rng, params, batch)
    return nn.mlp(params, batch.x):argmax(-1)
  end,
}

--- Trainer:memory (after redco.Trainer)
local memory = trainer:memory()
print(memory.params.here, memory.opt_state.whole)  --> 168  340

--- Trainer:plan (after redco.Trainer)
local plan = trainer:plan {
  train_examples = examples, per_device_batch_size = 16,
  cluster = "1x A100-80G:2",
}
local best = plan.layouts[1]
print(plan.n_devices, plan.global_batch_size, best.fits)  --> 2  32  true

--- Trainer:save_ckpt (after Trainer:fit)
trainer:save_ckpt { ckpt_name = "done", epoch_idx = 1 }  -- workdir/ckpts/done

--- Trainer:set_train_state (after redco.Trainer)
local ckpt = { params = nn.MLP { 2, 8, 2 } }  -- or a result of load_ckpt
trainer:set_train_state { params = ckpt.params, step = 0 }

--- Trainer:setup_running_step (after redco.Trainer)
trainer:setup_running_step { examples = examples, per_device_batch_size = 16 }

--- Trainer:train (after redco.Trainer)
trainer:train { examples = examples, per_device_batch_size = 16 }
print(trainer.step)  --> 4

--- Trainer:train_step (after redco.Trainer)
for i = 1, 3 do
  local metrics = trainer:train_step { examples = examples:slice(1, 16) }
  print(trainer.step, metrics.loss > 0)
end
--> 1  true
--> 2  true
--> 3  true
