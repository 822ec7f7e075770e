-- Images to classes, by an MLP or a small CNN. With --image=FILE: the class of one image.
local redco = require "redco"
local torch, nn = redco.torch, redco.nn

local o = redco.options {
  data = "",  -- a folder of MNIST-like IDX files; "": the digits beside this script
  image = "",  -- a PNG or JPEG to classify by the model in workdir, dark on light
  model = "cnn",
  workdir = "workdir",
  resume = false,  -- continue from the newest checkpoint of workdir, if there is one
  seed = 42,
  n_model_shards = 1,
  zero = 0,
  n_epochs = 20,
  max_steps = 0,  -- more than 0 ends the run early
  global_batch_size = 32,
  per_device_batch_size = 32,
  learning_rate = 3e-3,
  weight_decay = 0.01,
  dropout = 0.1,
}

-- Examples {image [1, side, side] in 0..1, label}.
local function to_examples(images, labels)
  images, labels = images:float():unsqueeze(1), labels:tolist()
  local examples = {}
  for i = 1, #labels do examples[i] = { image = images[i - 1], label = labels[i] } end
  return examples
end

local function load_embedded_digits()
  local rows = redco.data.loadtxt(redco.script_folder() .. "data/digits.csv")
  local images, labels = rows:narrow(1, 0, 64):view { -1, 8, 8 } / 16, rows:select(1, 64):long()
  return redco.data.split(to_examples(images, labels), { every = 5 })
end

local function load_idx(prefix)
  return to_examples(redco.data.idx(prefix .. "-images-idx3-ubyte.gz"):float() / 255,
    redco.data.idx(prefix .. "-labels-idx1-ubyte.gz"))
end

local train, test
if o.data == "" then
  train, test = load_embedded_digits()
else
  train, test = load_idx(o.data .. "/train"), load_idx(o.data .. "/t10k")
end
local side = train[1].image:size(-1)

local deployer = redco.Deployer {
  seed = o.seed, n_model_shards = o.n_model_shards, zero = o.zero, workdir = o.workdir,
}
local new = { generator = deployer:gen_rng() }

local models = {
  mlp = {
    params = function() return nn.MLP({ side * side, 256, 256, 10 }, new) end,
    apply = function(params, batch, options)
      local function activation(x) return nn.dropout(torch.relu(x), o.dropout, options) end
      return nn.mlp(params, batch.images:flatten(1), { activation = activation })
    end,
  },
  cnn = {
    params = function()
      return {
        conv1 = nn.Conv2d(1, 32, 3, new),
        conv2 = nn.Conv2d(32, 64, 3, new),
        head = nn.MLP({ 64 * math.floor(side / 4) ^ 2, 128, 10 }, new),
      }
    end,
    apply = function(params, batch, options)
      local x = torch.relu(nn.conv2d(params.conv1, batch.images, { padding = 1 }))
      x = torch.max_pool2d(x, 2)
      x = torch.relu(nn.conv2d(params.conv2, x, { padding = 1 }))
      x = torch.max_pool2d(x, 2)
      return nn.mlp(params.head, nn.dropout(x:flatten(1), o.dropout, options))
    end,
  },
}
local model = models[o.model] or error("--model is mlp or cnn, got " .. o.model)

local model_file = o.workdir .. "/model.safetensors"
if o.image ~= "" then
  local gray = 1 - redco.data.image(o.image):float():mean(0, true) / 255
  local images = torch.adaptive_avg_pool2d(gray:unsqueeze(0), { side, side })
  local chances = model.apply(torch.load(model_file), { images = images }):softmax(-1)[0]
  local label = chances:argmax():item()
  print(("%d (%.1f %%)"):format(label, 100 * chances[label]:item()))
  return
end

local ckpt, info
if o.resume then ckpt, info = deployer:load_last_ckpt() end

local schedule = deployer:get_lr_schedule_fn {
  train_size = #train, n_epochs = o.n_epochs, learning_rate = o.learning_rate,
  global_batch_size = o.global_batch_size, per_device_batch_size = o.per_device_batch_size,
  schedule_type = "cosine", warmup_steps = 50,
}

local trainer = redco.Trainer {
  deployer = deployer,
  collate_fn = function(examples)
    local images, labels = {}, {}
    for i, example in ipairs(examples) do images[i], labels[i] = example.image, example.label end
    return { images = torch.stack(images), labels = torch.tensor(labels) }
  end,
  apply_fn = model.apply,
  loss_fn = function(rng, state, params, batch, is_training)
    local logits = state.apply_fn(params, batch, { train = is_training, rng = rng })
    return nn.cross_entropy(logits, batch.labels)
  end,
  params = ckpt and ckpt.params or model.params(),
  opt_state = ckpt and ckpt.opt_state,
  last_ckpt_info = info,
  optimizer = redco.optim.adamw { learning_rate = schedule, weight_decay = o.weight_decay },
  lr_schedule_fn = schedule,
}

trainer:fit {
  train_examples = train,
  eval_examples = test,
  n_epochs = o.n_epochs,
  max_steps = o.max_steps,
  global_batch_size = o.global_batch_size,
  per_device_batch_size = o.per_device_batch_size,
  eval_per_device_batch_size = 256,
  save_last_ckpt = true,
  eval_predictor = trainer:get_default_predictor {
    pred_fn = function(rng, params, batch)
      return { label = model.apply(params, batch):argmax(-1) }
    end,
  },
  eval_metric_fn = function(examples, preds)
    local right = 0
    for i, example in ipairs(examples) do
      if preds[i].label:item() == example.label then right = right + 1 end
    end
    return { accuracy = right / #examples }
  end,
}

torch.save(trainer.params, model_file)
deployer:log_info("the model is in " .. model_file)
