-- A training step of a GPT-2 whose blocks are on several processes, one behind the other. Prints
-- one JSON line. Run it with as many processes as stages; with --folder= it saves the model and the
-- tokens there, for peer_pipeline.py.
local clock = require "clock"
local redco = require "redco"
local torch = redco.torch

local o = redco.options {
  stages = 2, chunks = 1, steps = 6, warmup = 2, batch = 16, micro = 2, seq = 128, layers = 8,
  hidden = 256, heads = 8, vocab = 2048, threads = 1, folder = "",
}
torch.set_num_threads(o.threads)

local deployer = redco.Deployer { seed = 0, n_pipeline_stages = o.stages,
  n_chunks_per_stage = o.chunks, verbose = false }
local model = redco.models.from_config({
  model_type = "gpt2", vocab_size = o.vocab, n_positions = o.seq, n_embd = o.hidden,
  n_layer = o.layers, n_head = o.heads, embd_pdrop = 0, resid_pdrop = 0, attn_pdrop = 0,
  tie_word_embeddings = false,
}, { generator = torch.Generator(1) })
local tokens = torch.randint(o.vocab, { (o.warmup + o.steps) * o.batch, o.seq + 1 },
  { generator = torch.Generator(2) })
if o.folder ~= "" then
  if deployer.process_id == 0 then
    model.save_pretrained(o.folder)
    torch.save({ tokens = tokens }, o.folder .. "/tokens.safetensors")
  end
  return
end

local trainer = redco.Trainer {
  deployer = deployer, params = model.params,
  collate_fn = function(indices)
    local rows = tokens:narrow(0, indices[1], #indices)
    return { input_ids = rows:narrow(1, 0, o.seq), labels = rows:narrow(1, 1, o.seq) }
  end,
  loss_fn = function(_, _, params, batch) return (model.loss(params, batch)) end,
  optimizer = redco.optim.adamw { learning_rate = 1e-3, weight_decay = 0.01 },
}

-- Steps on consecutive examples. Returns the seconds of a step and the last loss.
local function run(first, n_steps)
  local loss
  local from = clock.now()
  for step = first, first + n_steps - 1 do
    local examples = {}
    for i = 1, o.batch do examples[i] = step * o.batch + i - 1 end
    -- In their order: `fit` would shuffle them.
    loss = trainer:train_step { examples = examples, per_device_batch_size = o.micro }.loss
  end
  return (clock.now() - from) / n_steps, loss
end

run(0, o.warmup)
local seconds, loss = run(o.warmup, o.steps)
if deployer.process_id > 0 then return end
print(('{"name": "pipeline", "stages": %d, "chunks": %d, "micro_batches": %d, '
  .. '"tokens_per_s": %.1f, "step_ms": %.1f, "loss_last": %.5f, "peak_rss_mb": %.1f, '
  .. '"threads": %d}'):format(o.stages, o.chunks, o.batch / o.micro, o.batch * o.seq / seconds,
  seconds * 1e3, loss, clock.peak_rss_mb(), o.threads))
