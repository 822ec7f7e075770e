-- Data sets and workers in several processes: with collate = "local" each process reads its own
-- examples alone, and the numbers, random ones of collate_fn included, are those of one thread that
-- collates all.
local redco = require "redco"
local testing = require "testing"

local torch = redco.torch
local n_examples, micro = 26, 8

local function run(how, num_workers, n_model_shards)
  local deployer = redco.Deployer { seed = 1, n_model_shards = n_model_shards, verbose = false }
  local reads = torch.zeros({ n_examples }, { dtype = "int64" })  -- shared with the workers
  local set = redco.data.dataset(n_examples, function(i)
    reads[i - 1] = reads[i - 1] + 1
    return i
  end)
  local trainer = redco.Trainer {
    deployer = deployer, params = { w = torch.zeros({ 1 }, { dtype = "float64" }) },
    collate = how, num_workers = num_workers, compute_dtype = "float64",
    collate_fn = function(examples)
      local x = torch.tensor(examples, { dtype = "float64" }):div(n_examples)
      return { x = x + torch.rand({ #examples }, { dtype = "float64" }) }
    end,
    loss_fn = function(_, _, params, batch) return (params.w * batch.x - 2):pow(2):mean() end,
    optimizer = redco.optim.sgd { learning_rate = 0.1 },
  }
  -- The first batch says how the model is laid out: it is read once more.
  trainer:setup_running_step { examples = set, per_device_batch_size = 1 }
  reads:zero_()
  trainer:fit {
    train_examples = set, n_epochs = 1, global_batch_size = micro,
    per_device_batch_size = micro / deployer.mesh.dp / 2,
  }
  local n_reads = reads:sum():item()
  return trainer.params.w:full():item(), n_reads, deployer.mesh.dp
end

for _, n_model_shards in ipairs { 1, 2 } do
  local expected
  for _, how in ipairs { "global", "local" } do
    for _, num_workers in ipairs { 0, 2 } do
      testing.test(("%s, %d workers, %d model shards"):format(how, num_workers, n_model_shards),
        function()
          local w, n_reads, dp = run(how, num_workers, n_model_shards)
          expected = expected or w
          assert(w ~= 0 and math.abs(w - expected) < 1e-12, ("%.17g"):format(w))
          -- 4 + 4, 4 + 4, 4 + 4 and 2 examples; who has none of a batch reads its first.
          local own = dp == 4 and 7 or n_examples / dp
          testing.expect_equal(n_reads, how == "local" and own or n_examples)
        end)
    end
  end
end

-- Pictures of many sizes in buckets: the steps are those of one process that goes through the
-- batches by hand.
local function pictures()
  local rng, list = redco.Rng(3), {}
  for i = 1, 21 do
    local height, width = 10 + 3 * (i % 5), 10 + 4 * (i % 7)
    list[i] = { image = (255 * torch.rand({ 3, height, width }, { generator = rng })):to "uint8" }
  end
  return list
end

local function collate(examples)
  local images, time_ids = {}, {}
  for i, example in ipairs(examples) do
    images[i], time_ids[i] = example.image:double() / 255, example.time_ids
  end
  return { x = torch.stack(images), time_ids = torch.stack(time_ids):double() }
end

local function loss_of(params, batch)
  local y = torch.conv2d(batch.x, params.w, nil, 1, 1):mean { 1, 2, 3 }
  return ((y - 1):square() * batch.time_ids:mean(1)):mean()
end

local function new_params()
  return { w = torch.rand({ 4, 3, 3, 3 }, { dtype = "float64", generator = redco.Rng(5) }) }
end

local epochs = redco.data.bucket_sampler(pictures(), { batch_size = 4, crop = "random", seed = 2,
  buckets = redco.data.aspect_buckets(16, { divisor = 4 }) })

local function by_hand()
  local params = new_params()
  for epoch_idx = 0, 1 do
    local examples, rows = epochs(epoch_idx), {}
    for i = 1, #examples do
      rows[#rows + 1] = examples[i]
      if #rows == 4 then
        local _, gradients = redco.value_and_grad(loss_of)(params, collate(rows))
        params, rows = { w = params.w - 1e-3 * gradients.w }, {}
      end
    end
  end
  return params.w
end

for _, n_model_shards in ipairs { 1, 2 } do
  for _, how in ipairs { "global", "local" } do
    testing.test(("buckets, %s, %d model shards"):format(how, n_model_shards), function()
      local deployer = redco.Deployer { seed = 1, n_model_shards = n_model_shards,
        verbose = false }
      local trainer = redco.Trainer {
        deployer = deployer, params = new_params(), collate_fn = collate, collate = how,
        compute_dtype = "float64", optimizer = redco.optim.sgd { learning_rate = 1e-3 },
        loss_fn = function(_, _, params, batch) return loss_of(params, batch) end,
      }
      trainer:fit { train_examples = epochs, n_epochs = 2, shuffle = false, global_batch_size = 4,
        per_device_batch_size = 4 / deployer.mesh.dp }
      local expected = by_hand()
      local off = (trainer.params.w:full() - expected):abs():max():item()
      assert(off < 1e-10, "off by " .. off)
      assert((expected - new_params().w):abs():max():item() > 1e-3, "nothing was trained")
    end)
  end
end

testing.finish()
