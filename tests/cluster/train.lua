-- Trains the models of this folder, one after the other, and writes what came out of each to
-- <workdir>/<name>/: metrics.jsonl, and result.safetensors with the loss of an evaluation, the
-- predictions and the parameters.
--
-- A run is named <model>-<dtype>-zero<0 to 3>, with "-sequence" for sequence parallelism,
-- "-groupN" for groups of N processes that share the state of zero, "-contextN" for N context
-- shards, "-stagesN" for N stages of a pipeline, "-recompute" for activations that backward
-- computes again, "-selective" for recompute = "selective", "-offload" for offload_optimizer,
-- "-dropout" where the model drops and "-mqa" for one head of keys and values.
--
-- With save_every it writes checkpoints, and goes on from what it finds. At the step signal_at the
-- process signal_rank sends itself `signal`. With `whole`, a folder, it then trains each once
-- more, from its start and without checkpoints, to <whole>/<name>/.
local native = require "redco.native"
local redco = require "redco"
local torch = redco.torch

native.keep_results_of(0)  -- these models are small

local o = redco.options {
  workdir = "", runs = "gpt-float64-zero0", n_model_shards = 1, n_examples = 37,
  global_batch_size = 8, per_device_batch_size = 2, save_every = 0, max_steps = 1000,
  save_in_background = true, on_save_error = "stop",
  n_epochs = 0,  -- 0: 4 of the GPT in float64, 2 of all others
  signal = "KILL", signal_at = -1, signal_rank = 0, whole = "",
  device = "",  -- as Deployer takes it; "": none is given
}

local function train(name, workdir, save_every)
  local model, dtype, zero, extra = name:match "^(%w+)-([%w:]+)-zero(%d)(.*)$"
  local deployer = redco.Deployer {
    seed = 7, n_model_shards = o.n_model_shards, zero = tonumber(zero), verbose = false,
    zero_min_size = 64,  -- the tests' models are small
    zero_group = tonumber(extra:match "group(%d)"),
    n_context_shards = tonumber(extra:match "context(%d)"),
    n_pipeline_stages = tonumber(extra:match "stages(%d)"),
    n_chunks_per_stage = tonumber(extra:match "chunks(%d)"),
    sequence_parallel = extra:find "sequence" ~= nil, workdir = workdir .. "/" .. name,
    device = o.device ~= "" and o.device or nil,
  }
  local recomputes, has_stages = extra:find "recompute" ~= nil, extra:find "stages" ~= nil
  local stored = dtype == "float64" and dtype or "float32"
  local task = require(model)(torch.Generator(5), {
    n_examples = o.n_examples, dtype = stored, dropout = extra:find "dropout" and 0.1 or 0,
    n_kv_heads = extra:find "mqa" and 1 or 2, recomputes = recomputes and not has_stages,
  })
  local params = redco.tree.map(function(param)
    return torch.is_tensor(param) and param:to(stored) or param
  end, task.params)
  local checkpoint, info
  if save_every > 0 then checkpoint, info = deployer:load_last_ckpt {} end
  local rate = redco.optim.linear_schedule {
    peak_value = 0.01, warmup_steps = 3, total_steps = 40,
  }
  local adamw = redco.optim.adamw {
    learning_rate = rate, weight_decay = 0.1,
    mask = function(_, param) return param:dim() > 1 end,
  }
  local optimizer = redco.optim.chain { redco.optim.clip_by_global_norm(1), adamw }
  if task.is_frozen then optimizer = redco.optim.freeze(optimizer, task.is_frozen) end
  local function loss_fn(rng, state, ...)
    if state.step == o.signal_at and deployer.process_id == o.signal_rank then
      os.execute("kill -" .. o.signal .. " $PPID")
    end
    return task.loss_fn(rng, state, ...)
  end
  local trainer = redco.Trainer {
    deployer = deployer, params = checkpoint and checkpoint.params or params,
    opt_state = checkpoint and checkpoint.opt_state, last_ckpt_info = info,
    collate_fn = task.collate_fn, loss_fn = loss_fn, optimizer = optimizer, compute_dtype = dtype,
    recompute = extra:find "selective" and "selective" or recomputes and has_stages and "blocks"
      or nil,
    offload_optimizer = extra:find "offload" ~= nil,
  }
  local mesh = deployer.mesh
  local n_of_example = mesh.cp * mesh.pp
  local batch_size = o.per_device_batch_size * n_of_example
  if task.accumulate then
    batch_size = o.global_batch_size
      / (task.accumulate * deployer.n_processes / mesh.mp / n_of_example)
  end
  trainer:fit {
    train_examples = task.examples,
    n_epochs = o.n_epochs > 0 and o.n_epochs or name:find "^gpt%-float64" and 4 or 2,
    per_device_batch_size = batch_size,
    global_batch_size = o.global_batch_size, max_steps = o.max_steps,
    save_ckpt_every_k_steps = save_every > 0 and save_every or nil,
    save_last_ckpt = save_every > 0, save_in_background = o.save_in_background,
    on_save_error = o.on_save_error,
  }
  local evaluated = trainer:eval_loss {
    examples = task.examples, per_device_batch_size = batch_size,
  }
  local predictor = trainer:get_default_predictor { pred_fn = task.pred_fn }
  local predictions = predictor:predict {
    examples = task.examples, per_device_batch_size = batch_size, params = trainer.state.params,
  }
  torch.save({
    evaluated = torch.tensor({ evaluated }, { dtype = "float64" }),
    predictions = torch.stack(predictions), params = trainer.state.params,
    opt_state = trainer.state.opt_state,
  }, workdir .. "/" .. name .. "/result.safetensors")
end

for name in o.runs:gmatch "%S+" do
  train(name, o.workdir, o.save_every)
  if o.whole ~= "" then train(name, o.whole, 0) end
end
