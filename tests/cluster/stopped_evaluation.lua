-- Trains a small model with everything that an evaluation changes: a learning rate that follows it,
-- early stopping, the best checkpoints, the Deployer's random numbers, custom state and hooks that
-- predict. At the call `stop_call` of `stop_place` the last process sends itself SIGTERM.
-- Writes <workdir>/result.safetensors at the end, and to <workdir>/calls.txt each call of a place
-- after the signal.
local redco = require "redco"
local torch = redco.torch

local o = redco.options {
  workdir = "", n_model_shards = 1, zero = 0, per_device_batch_size = 2, stop_place = "",
  stop_call = 1, eval_every_k_steps = 0, max_steps = 0, sanity_check = true, n_epochs = 3,
}

local deployer = redco.Deployer {
  seed = 3, n_model_shards = o.n_model_shards, zero = o.zero, zero_min_size = 1,
  workdir = o.workdir, verbose = false,
}
local checkpoint, info = deployer:load_last_ckpt {}

local calls, was_signalled = {}, false
local function call(place)
  calls[place] = (calls[place] or 0) + 1
  if was_signalled and deployer.process_id == 0 then
    local file = io.open(o.workdir .. "/calls.txt", "a")
    file:write(place, "\n")
    file:close()
  end
  if place ~= o.stop_place or calls[place] ~= o.stop_call then return end
  was_signalled = true
  if deployer.process_id == deployer.n_processes - 1 then os.execute "kill -TERM $PPID" end
end

local model = redco.models.from_config({
  model_type = "gpt2", vocab_size = 17, n_positions = 24, n_embd = 8, n_layer = 1, n_head = 2,
  resid_pdrop = 0.1, embd_pdrop = 0.1, attn_pdrop = 0.1,
}, { generator = torch.Generator(5) })
local examples = {}
for i = 1, 20 do
  examples[i] = torch.randint(17, { 7 }, { generator = torch.Generator(i) })
end

local history = checkpoint and checkpoint.custom_state or { losses = {}, draws = {} }
local function collate_fn(batch)
  local ids = torch.stack(batch)
  return { input_ids = ids:narrow(1, 0, 6), labels = ids:narrow(1, 1, 6) }
end
local trainer = redco.Trainer {
  deployer = deployer, params = checkpoint and checkpoint.params or model.params,
  opt_state = checkpoint and checkpoint.opt_state, last_ckpt_info = info, collate_fn = collate_fn,
  custom_state = history,
  loss_fn = function(rng, _, params, batch, is_training)
    call(is_training and "step" or "loss")
    return model.loss(params, batch, { train = is_training, rng = rng })
  end,
  optimizer = redco.optim.adamw {
    learning_rate = redco.optim.on_plateau { value = 0.03, metric = "loss", patience = 0,
      factor = 0.5 },
  },
}

-- Samples with the Predictor's random numbers, token by token.
local predictor = trainer:get_default_predictor {
  pred_fn = function(rng, params, batch)
    call "pred"
    return model.generate(params, { input_ids = batch.input_ids }, {
      max_length = 20, do_sample = true, rng = rng, pad_token_id = 0,
      streamer = function() call "token" end,
    })
  end,
}
local function predicted(n)
  local part = {}
  for i = 1, n do part[i] = examples[i] end
  local sum = 0
  for _, ids in ipairs(predictor:predict { examples = part, params = trainer.state.params,
    per_device_batch_size = o.per_device_batch_size }) do
    sum = sum + ids:sum():item()
  end
  return sum
end

trainer:fit {
  train_examples = examples, n_epochs = o.n_epochs,
  per_device_batch_size = o.per_device_batch_size, global_batch_size = 4,
  max_steps = o.max_steps > 0 and o.max_steps or nil,
  eval_examples = { unpack(examples, 1, 12) }, eval_sanity_check = o.sanity_check,
  eval_every_k_steps = o.eval_every_k_steps > 0 and o.eval_every_k_steps or nil,
  eval_predictor = predictor, eval_metric_fn = function(_, preds)
    local sum = 0
    for _, ids in ipairs(preds) do sum = sum + ids:sum():item() end
    return { sum = sum }
  end,
  early_stopping = { metric = "loss", patience = 9 },
  save_argmin_ckpt_by_metrics = { "loss" }, save_ckpt_every_k_steps = 3, save_last_ckpt = true,
  on_eval = function(event)
    history.losses[#history.losses + 1] = event.metrics.loss
    call "on_eval"
    history.draws[#history.draws + 1] = predicted(8)
  end,
  on_epoch = function(event)
    call "on_epoch"
    history.draws[#history.draws + 1] = predicted(8) + event.epoch_idx / 8
  end,
}

if deployer.process_id == 0 then
  local file = io.open(o.workdir .. "/calls.txt", "a")
  file:write "end\n"
  file:close()
end
torch.save({
  params = trainer.state.params, opt_state = trainer.state.opt_state,
  history = { losses = torch.tensor(history.losses, { dtype = "float64" }),
    draws = torch.tensor(history.draws, { dtype = "float64" }) },
  rng = torch.rand({ 4 }, { generator = deployer:gen_rng() }),
}, o.workdir .. "/result.safetensors")
