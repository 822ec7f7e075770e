-- One training step of a small GPT-2, through the Trainer and the model that ships, on any number
-- of processes. Prints one JSON line. --batch counts the examples of all processes. --data= is a
-- folder with `init.safetensors` and `tokens.npy`, for runs from the weights and on the tokens of
-- another program; without it both are drawn here. --save_every=10 --workdir=/folder saves in the
-- background, and tells what a save costs: what its steps take more than the median.
local clock = require "clock"
local redco = require "redco"
local torch = redco.torch

local o = redco.options {
  data = "", steps = 20, warmup = 3, batch = 8, seq = 128, layers = 4, hidden = 256, heads = 8,
  vocab = 8192, lr = 1e-3, weight_decay = 0.01, threads = 2, compute_dtype = "float32",
  n_model_shards = 1, zero = 0, sequence_parallel = false, workdir = "", save_every = 0,
}
torch.set_num_threads(o.threads)

-- [n, seq + 1] int32
local function read_npy(path)
  local file = assert(io.open(path, "rb"))
  local bytes = file:read "*a"
  file:close()
  local header_length = bytes:byte(9) + 256 * bytes:byte(10)
  local header = bytes:sub(11, 10 + header_length)
  assert(header:find("'descr': '<i4'", 1, true), path .. ": expected int32")
  local rows, columns = header:match "%((%d+), (%d+)%)"
  return torch.frombuffer(bytes, { dtype = "int32", offset = 10 + header_length })
    :view { tonumber(rows), tonumber(columns) }
end

local deployer = redco.Deployer {
  seed = 0, n_model_shards = o.n_model_shards, zero = o.zero,
  sequence_parallel = o.sequence_parallel, workdir = o.workdir ~= "" and o.workdir or nil,
}
local model = redco.models.from_config {
  model_type = "gpt2", vocab_size = o.vocab, n_positions = o.seq,
  n_embd = o.hidden, n_layer = o.layers, n_head = o.heads,
  embd_pdrop = 0, resid_pdrop = 0, attn_pdrop = 0,
}

-- The names of the shared weights beside Hugging Face's; q, k and v come apart.
local function read_weights(path)
  local given, params = torch.load(path), model.params
  local function set(name, ...)
    params["transformer." .. name]:copy_(select("#", ...) == 1 and (...) or torch.cat({ ... }, -1))
  end
  set("wte.weight", given.wte)
  set("wpe.weight", given.wpe)
  set("ln_f.weight", given["ln_f.w"])
  set("ln_f.bias", given["ln_f.b"])
  for i = 0, o.layers - 1 do
    local from, to = ("h%d."):format(i), ("h.%d."):format(i)
    for _, pair in ipairs { { "ln_1", "ln_1" }, { "ln_2", "ln_2" }, { "attn.c_proj", "o" },
      { "mlp.c_fc", "fc" }, { "mlp.c_proj", "proj" } } do
      set(to .. pair[1] .. ".weight", given[from .. pair[2] .. ".w"])
      set(to .. pair[1] .. ".bias", given[from .. pair[2] .. ".b"])
    end
    for name, part in pairs { weight = ".w", bias = ".b" } do
      set(to .. "attn.c_attn." .. name, given[from .. "q" .. part], given[from .. "k" .. part],
        given[from .. "v" .. part])
    end
  end
end

local tokens
if o.data ~= "" then
  torch.no_grad(read_weights, o.data .. "/init.safetensors")
  tokens = read_npy(o.data .. "/tokens.npy")
else
  tokens = torch.rand { (o.warmup + o.steps) * o.batch, o.seq + 1 }:pow(3):mul(o.vocab):int()
end

-- The Trainer shuffles; the n-th call takes the n-th batch, as the other programs do.
local starts, losses = {}, {}
local function collate_fn(examples)
  starts[#starts + 1] = clock.now()
  local first = (#starts - 1) * o.batch
  local rows = tokens:narrow(0, first, #examples):long()
  return { input_ids = rows:narrow(1, 0, o.seq), labels = rows:narrow(1, 1, o.seq) }
end

local examples = {}
for i = 1, (o.warmup + o.steps) * o.batch do examples[i] = i end

local trainer = redco.Trainer {
  deployer = deployer,
  collate_fn = collate_fn,
  apply_fn = model,
  loss_fn = function(rng, state, params, batch, is_training)
    local loss, count = model.loss(params, batch, { train = is_training, rng = rng })
    losses[#losses + 1] = loss:detach()
    return loss, count
  end,
  params = model.params,
  compute_dtype = o.compute_dtype,
  optimizer = redco.optim.adamw { learning_rate = o.lr, weight_decay = o.weight_decay },
}
local per_device = o.batch / deployer.mesh.dp
trainer:setup_running_step { examples = examples, per_device_batch_size = per_device }
starts, losses = {}, {}
trainer:fit {
  train_examples = examples, per_device_batch_size = per_device, n_epochs = 1,
  save_ckpt_every_k_steps = o.save_every > 0 and o.save_every or nil, keep_last_k_ckpts = 1,
}
starts[#starts + 1] = clock.now()

local times = {}
for i = o.warmup + 1, o.warmup + o.steps do times[#times + 1] = starts[i + 1] - starts[i] end
local total = starts[#starts] - starts[o.warmup + 1]
table.sort(times)
if deployer.process_id > 0 then return end
local median = times[math.ceil(#times / 2)]
local n_saves = o.save_every > 0 and math.floor((o.warmup + o.steps) / o.save_every) or 0
print(('{"name": "gpt2_step", "processes": "%dx%d", "zero": %d, "tokens_per_s": %.1f, '
  .. '"step_ms_median": %.2f, "peak_rss_mb": %.1f, '
  .. '"loss_first": %.5f, "loss_last": %.5f, "threads": %d, "compute_dtype": "%s", '
  .. '"seconds_per_save": %.2f}'):format(
  deployer.mesh.dp, deployer.mesh.mp, o.zero, o.steps * o.batch * o.seq / total,
  median * 1e3, clock.peak_rss_mb(),
  losses[1]:item(), losses[#losses]:item(), o.threads, o.compute_dtype,
  n_saves > 0 and (total - #times * median) / n_saves or 0))
