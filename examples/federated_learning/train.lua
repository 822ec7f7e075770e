-- Federated averaging (arXiv 1602.05629): clients train on their own examples, and a server, which
-- never sees the examples, averages their parameters.
local redco = require "redco"
local federated = redco.federated
local torch, nn, tree = redco.torch, redco.nn, redco.tree

local o = redco.options {
  data = "",  -- a folder of IDX files, or digits; "": Debian's Fashion-MNIST, or digits without it
  workdir = "workdir",
  resume = false,  -- continue after the last round in workdir, if there is one
  seed = 42,
  n_model_shards = 1, zero = 0,
  partition = "iid",  -- shards or dirichlet: clients differ in what they have
  shards_per_client = 2,  -- shards: about so many classes has a client
  alpha = 0.5,  -- dirichlet: the smaller, the more unequal are the clients
  n_clients = 100, clients_per_round = 10,
  n_rounds = 50,
  local_epochs = 5, local_batch_size = 10,
  average = "examples",  -- clients count by their examples; or "uniform"
  optimizer = "sgd",  -- of the clients; or "adam"
  learning_rate = 0.1,
}
if o.average ~= "examples" and o.average ~= "uniform" then
  error("--average is examples or uniform, got " .. o.average)
end
local optimizer = (({ sgd = redco.optim.sgd, adam = redco.optim.adam })[o.optimizer]
  or error("--optimizer is sgd or adam, got " .. o.optimizer)) { learning_rate = o.learning_rate }
for _, name in ipairs { "local_epochs", "local_batch_size" } do
  if o[name] < 1 then error(("%s is %d, expected at least 1"):format(name, o[name])) end
end
if o.clients_per_round < 1 or o.clients_per_round > o.n_clients then
  error(("--clients-per-round is %d, expected 1 to %d, the number of clients")
    :format(o.clients_per_round, o.n_clients))
end

-- Images [n, 1, side, side] with their labels [n].
local function load_idx(prefix)
  return { images = redco.data.idx(prefix .. "-images-idx3-ubyte.gz"):unsqueeze(1),
    labels = redco.data.idx(prefix .. "-labels-idx1-ubyte.gz"):long(), white = 255 }
end

local function load_digits(rows)
  return { images = rows:narrow(1, 0, 64):reshape { -1, 1, 8, 8 },
    labels = rows:select(1, 64):long(), white = 16 }
end

local train, test
local fashion = "/usr/share/datasets/fashion-mnist"
local folder = o.data
if folder == "" and io.open(fashion .. "/t10k-labels-idx1-ubyte.gz") then folder = fashion end
if folder == "digits" or folder == "" then
  local rows = redco.data.loadtxt(redco.script_folder() .. "../digits/data/digits.csv")
  train, test = redco.data.split(rows:unbind(0), { every = 5 })
  train, test = load_digits(torch.stack(train)), load_digits(torch.stack(test))
else
  train, test = load_idx(folder .. "/train"), load_idx(folder .. "/t10k")
end
local side = train.images:size(-1)

local deployer = redco.Deployer {
  seed = o.seed, n_model_shards = o.n_model_shards, zero = o.zero, workdir = o.workdir }
local new = { generator = deployer:gen_rng() }

local function batch_of(set, rows)
  return { images = set.images[rows]:float() / set.white, labels = set.labels[rows] }
end

local function apply(params, images)
  local x = torch.relu(nn.conv2d(params.conv1, images, { stride = 2, padding = 1 }))
  x = torch.relu(nn.conv2d(params.conv2, x, { stride = 2, padding = 1 }))
  return nn.mlp(params.head, x:flatten(1))
end

local function loss_of(params, rows)
  local batch = batch_of(train, rows)
  return (nn.cross_entropy(apply(params, batch.images), batch.labels))
end

local clients = federated.partition(train.labels, {
  kind = o.partition, n_clients = o.n_clients, shards_per_client = o.shards_per_client,
  alpha = o.alpha, generator = deployer:gen_rng() })

-- The batches of a client depend on the seed, the round and the client only.
local function batches_of(client, rng)
  local rows, batches = clients[client], {}
  for _ = 1, o.local_epochs do
    local order = torch.randperm(rows:numel(), { generator = rng })
    for _, batch in ipairs(rows[order]:split(o.local_batch_size)) do
      batches[#batches + 1] = batch
    end
  end
  return batches
end

local function train_round(params, round)
  local rng = redco.Rng(o.seed):fold_in(round)
  local order = torch.randperm(o.n_clients, { generator = rng })
  return federated.round(deployer, (order:narrow(0, 0, o.clients_per_round) + 1):tolist(),
    function(client)
      local batches = batches_of(client, rng:fold_in(client))
      return federated.train_client(params, loss_of, batches, optimizer)
    end,
    function(client) return o.average == "uniform" and 1 or clients[client]:numel() end)
end

local predictor = redco.Predictor {
  deployer = deployer,
  collate_fn = function(rows) return batch_of(test, torch.tensor(rows)) end,
  pred_fn = function(_, params, batch)
    local chances = apply(params, batch.images):log_softmax(-1)
    return { label = chances:argmax(-1), loss = -chances:gather(1, batch.labels:unsqueeze(1)) }
  end,
}

-- The accuracy and the loss on the test images, and how often a class was taken for which.
local function evaluate(params)
  local found = redco.data.default_collate(predictor:predict {
    examples = torch.arange(test.labels:numel()):tolist(), params = params,
    per_device_batch_size = 500 })
  local matrix = redco.metrics.confusion_matrix(found.label, test.labels)
  return { accuracy = redco.metrics.accuracy(found.label, test.labels),
    loss = found.loss:mean():item() }, matrix
end

local params = { conv1 = nn.Conv2d(1, 16, 3, new), conv2 = nn.Conv2d(16, 32, 3, new),
  head = nn.MLP({ 32 * math.ceil(side / 4) ^ 2, 64, 10 }, new) }
local ckpt, info = unpack(o.resume and { deployer:load_last_ckpt() } or {})
-- Each process trains clients by itself, so it needs whole parameters.
params = tree.map(function(param) return param:full() end, ckpt and ckpt.params or params)
for round = info and info.step + 1 or 1, o.n_rounds do
  params = train_round(params, round)
  local metrics, matrix = evaluate(params)
  if metrics.loss ~= metrics.loss then
    error(("round %d: the loss is not a number; take a smaller --learning-rate"):format(round))
  end
  deployer:log_metrics(metrics, round)
  deployer:log_info(("round %d: accuracy %.4f, loss %.4f"):format(round, metrics.accuracy,
    metrics.loss))
  deployer:save_outputs(matrix:tolist(), { desc = "confusion_" .. round, step = round })
  deployer:save_ckpt { ckpt_dir = o.workdir .. "/ckpts/last", params = params,
    info = { step = round } }
  if round == o.n_rounds then
    deployer:log_info(tostring(matrix), { title = "Confusion matrix" })
  end
end

torch.save(params, o.workdir .. "/model.safetensors")
