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

testing.finish()
