-- DP-SGD (arXiv 1607.00133): a classifier of images that gives away little about each of them.
local redco = require "redco"
local torch, nn, privacy = redco.torch, redco.nn, redco.privacy

local o = redco.options {
  data = "",  -- a folder of IDX files, or digits; "": Debian's Fashion-MNIST, or digits without it
  workdir = "workdir",
  resume = false,  -- continue from the newest checkpoint of workdir, if there is one
  seed = 42,
  n_model_shards = 1, zero = 0,
  epsilon = 3.0,  -- the privacy budget; 0: train with noise_multiplier
  delta = 1e-5,
  noise_multiplier = 0.0,  -- the standard deviation of the noise divided by max_grad_norm
  max_grad_norm = 1.0,  -- to which the gradient of each image is clipped
  accountant = "prv",  -- or "rdp"
  n_epochs = 5,
  max_steps = 0,  -- more than 0 ends the run early
  global_batch_size = 512,  -- expected: each image is in a batch with the same probability
  micro_batch_size = 128,  -- images whose gradients are in memory at a time
  learning_rate = 2e-3,
}

-- Examples {image [1, side, side] in 0..1, label}.
local function to_examples(images, labels)
  local examples = {}
  for i, label in ipairs(labels:tolist()) do
    examples[i] = { image = images[i - 1]:unsqueeze(0), label = label }
  end
  return examples
end

local function load_idx(prefix)
  return to_examples(redco.data.idx(prefix .. "-images-idx3-ubyte.gz"):float() / 255,
    redco.data.idx(prefix .. "-labels-idx1-ubyte.gz"))
end

local train, test
local fashion = "/usr/share/datasets/fashion-mnist"
local folder = o.data
if folder == "" and io.open(fashion .. "/t10k-labels-idx1-ubyte.gz") then folder = fashion end
if folder == "digits" or folder == "" then
  local rows = redco.data.loadtxt(redco.script_folder() .. "../digits/data/digits.csv")
  local images = rows:narrow(1, 0, 64):view { -1, 8, 8 } / 16
  train, test = redco.data.split(to_examples(images, rows:select(1, 64):long()), { every = 5 })
else
  train, test = load_idx(folder .. "/train"), load_idx(folder .. "/t10k")
end
local side = train[1].image:size(-1)
local sample_rate = o.global_batch_size / #train
local steps_per_epoch = math.ceil(#train / o.global_batch_size)

local noise_multiplier = o.noise_multiplier
if o.epsilon > 0 then
  noise_multiplier = privacy.noise_multiplier {
    target_epsilon = o.epsilon, delta = o.delta, sample_rate = sample_rate,
    steps = o.n_epochs * steps_per_epoch, accountant = o.accountant,
  }
end

-- Returns epsilon at the end of the epoch of a step: an upper bound for the steps so far.
local costs = {}
local function epsilon_after(step)
  local epoch = math.ceil(step / steps_per_epoch)
  costs[epoch] = costs[epoch] or privacy.epsilon {
    noise_multiplier = noise_multiplier, sample_rate = sample_rate, delta = o.delta,
    steps = epoch * steps_per_epoch, accountant = o.accountant,
  }
  return costs[epoch]
end

local deployer = redco.Deployer {
  seed = o.seed, n_model_shards = o.n_model_shards, zero = o.zero, workdir = o.workdir }
deployer:log_info(("noise multiplier %.4g"):format(noise_multiplier))
local new = { generator = deployer:gen_rng() }

local function apply(params, images)
  local x = torch.relu(nn.conv2d(params.conv1, images, { stride = 2, padding = 1 }))
  x = torch.relu(nn.conv2d(params.conv2, x, { stride = 2, padding = 1 }))
  return nn.mlp(params.head, x:flatten(-3))
end

local function loss_of(params, batch)
  return (nn.cross_entropy(apply(params, batch.image), batch.label))
end

-- Each image is in each batch with the same probability, as the accountant assumes: fit's batches,
-- which contain each image once an epoch, are not used.
local sample = redco.data.poisson_sampler(train, { rate = sample_rate, seed = o.seed })

local function train_step_fn(rng, state, _, defaults)
  local examples = sample(state.step):tolist()
  local batch = #examples > 0 and redco.data.default_collate(examples) or {}
  local gradients, info = privacy.gradients(loss_of, state.params, batch, {
    max_grad_norm = o.max_grad_norm, noise_multiplier = noise_multiplier, rng = rng,
    expected_batch_size = o.global_batch_size, micro_batch_size = o.micro_batch_size,
  })
  defaults.apply_gradients(gradients)
  info.epsilon = noise_multiplier > 0 and epsilon_after(state.step + 1) or nil
  return info
end

local ckpt, last = unpack(o.resume and { deployer:load_last_ckpt() } or {})

local trainer = redco.Trainer {
  deployer = deployer, collate_fn = redco.data.default_collate,
  loss_fn = function(rng, state, params, batch) return loss_of(params, batch) end,
  train_step_fn = train_step_fn,
  params = ckpt and ckpt.params or {
    conv1 = nn.Conv2d(1, 16, 3, new), conv2 = nn.Conv2d(16, 32, 3, new),
    head = nn.MLP({ 32 * math.ceil(side / 4) ^ 2, 32, 10 }, new),
  },
  opt_state = ckpt and ckpt.opt_state, last_ckpt_info = last,
  optimizer = redco.optim.adam { learning_rate = o.learning_rate },
}

trainer:fit {
  train_examples = train, eval_examples = test,
  n_epochs = o.n_epochs, max_steps = o.max_steps, save_last_ckpt = true,
  per_device_batch_size = o.global_batch_size / deployer.mesh.dp, eval_per_device_batch_size = 256,
  eval_predictor = trainer:get_default_predictor {
    pred_fn = function(rng, params, batch) return apply(params, batch.image):argmax(-1) end,
  },
  eval_metric_fn = function(examples, preds)
    local labels = {}
    for i, example in ipairs(examples) do labels[i] = example.label end
    return { accuracy = redco.metrics.accuracy(torch.stack(preds), torch.tensor(labels)) }
  end,
}

torch.save(trainer.params, o.workdir .. "/model.safetensors")
