-- Examples per second of a CNN on 28 x 28 images: collation alone, training, prediction. One JSON
-- line.
local clock = require "clock"
local redco = require "redco"
local torch, nn = redco.torch, redco.nn

local o = redco.options { examples = 10000, epochs = 3, batch = 64, threads = 2 }
torch.set_num_threads(o.threads)
torch.manual_seed(0)

local images = torch.randint(0, 256, { o.examples, 28, 28 }, { dtype = "uint8" })
local labels = torch.randint(0, 10, { o.examples }):tolist()
local examples = {}
for i = 1, o.examples do examples[i] = { image = images[i - 1], label = labels[i] } end

local params = {
  conv1 = nn.Conv2d(1, 32, 3), conv2 = nn.Conv2d(32, 64, 3), head = nn.MLP { 64 * 7 * 7, 256, 10 },
}

local function collate_fn(batch)
  local images_of, labels_of = {}, {}
  for i, example in ipairs(batch) do images_of[i], labels_of[i] = example.image, example.label end
  return { images = torch.stack(images_of), labels = torch.tensor(labels_of) }
end

local function forward(p, batch)
  local x = batch.images:unsqueeze(1):float() / 255
  x = torch.avg_pool2d(torch.relu(nn.conv2d(p.conv1, x, { padding = 1 })), 2)
  x = torch.avg_pool2d(torch.relu(nn.conv2d(p.conv2, x, { padding = 1 })), 2)
  return nn.mlp(p.head, x:flatten(1))
end

local function rate(n, f)
  local start = clock.now()
  f()
  return n / (clock.now() - start)
end

local collation = rate(o.examples, function()
  for first = 1, o.examples - o.batch, o.batch do
    local batch = {}
    for i = 1, o.batch do batch[i] = examples[first + i - 1] end
    collate_fn(batch)
  end
end)

local trainer = redco.Trainer {
  deployer = redco.Deployer { seed = 0 },
  collate_fn = collate_fn,
  loss_fn = function(rng, state, p, batch, is_training)
    return nn.cross_entropy(forward(p, batch), batch.labels)
  end,
  params = params,
  optimizer = redco.optim.adamw { learning_rate = 1e-3 },
}
local training = {}
for epoch = 1, o.epochs do
  training[epoch] = rate(o.examples, function()
    trainer:train { examples = examples, per_device_batch_size = o.batch }
  end)
end
table.remove(training, 1)

local predictor = trainer:get_default_predictor {
  pred_fn = function(rng, p, batch) return forward(p, batch):argmax(-1) end,
}
local prediction = rate(o.examples, function()
  predictor:predict {
    examples = examples, per_device_batch_size = o.batch, params = trainer.params,
  }
end)
print(('{"name": "digits", "collation_examples_per_s": %.0f, "train_examples_per_s": %.0f, '
  .. '"predict_examples_per_s": %.0f, "peak_rss_mb": %.1f}'):format(collation,
  clock.median(training), prediction, clock.peak_rss_mb()))
