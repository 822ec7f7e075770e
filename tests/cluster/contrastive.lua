-- Contrastive losses on every layout and in micro-batches: parameters are those of one process with
-- the whole batch.
local redco = require "redco"
local testing = require "testing"

local contrastive, torch = redco.contrastive, redco.torch
local n_processes = tonumber(os.getenv "WORLD_SIZE")
local source = assert(os.getenv "REDCO_SOURCE")
local bert = redco.models.from_pretrained(source .. "/tests/cases/bert",
  { task = "features", dtype = "float64" })

local generator, rows = torch.Generator(5), {}
for i = 1, 16 do
  rows[i] = { score = torch.tensor(i % 5 / 4, { dtype = "float64" }) }
  for _, name in ipairs { "anchor", "positive", "negative" } do
    rows[i][name] = torch.randint(5, 200, { 6 }, { generator = generator })
  end
end

-- A loss of three vectors for each example, and of their first numbers.
local function loss_fn(rng, _, params, batch)
  local vectors = {}
  for i, name in ipairs { "anchor", "positive", "negative" } do
    local mean = bert(params, { input_ids = batch[name] }, { pooling = "mean" })
    vectors[i] = redco.nn.dropout(mean, 0.1, { train = true, rng = rng })
  end
  local loss, count = contrastive.matryoshka(vectors, { loss = "multiple_negatives_ranking",
    matryoshka_dims = { vectors[1]:size(1), 4 } })
  local ordered = contrastive.cosent({ vectors[1], vectors[2] }, { labels = batch.score })
  return loss + ordered, count
end

local function trained(deployer, per_device, accumulate)
  local trainer = redco.Trainer { deployer = deployer, params = bert.params, loss_fn = loss_fn,
    compute_dtype = "float64", collate_fn = redco.data.default_collate,
    accumulate_grad_batches = accumulate, optimizer = redco.optim.sgd { learning_rate = 0.01 } }
  trainer:fit { train_examples = rows, per_device_batch_size = per_device, n_epochs = 2 }
  local params = {}
  for name, leaf in pairs(trainer.params) do params[name] = leaf:full():detach() end
  return params
end

local function new_deployer(options)
  options.seed, options.verbose = 1, false
  return redco.Deployer(options)
end

local expected = new_deployer({}):alone(function() return trained(new_deployer {}, 16, 1) end)[1]

local layouts = { { n_model_shards = 1 }, { n_model_shards = 2 }, { zero = 3 },
  { n_model_shards = 2, zero = 2 }, { n_pipeline_stages = 2 },
  { n_pipeline_stages = 2, n_chunks_per_stage = 2 } }
if n_processes > 2 then layouts[#layouts + 1] = { n_pipeline_stages = 2, n_model_shards = 2 } end

for _, layout in ipairs(layouts) do
  for _, accumulate in ipairs { 1, 2, 4 } do
    -- The random numbers of a second training with one Deployer are others.
    local deployer = new_deployer(layout)
    testing.test(("%d micro-batches of %s"):format(accumulate, tostring(deployer)), function()
      local params = trained(deployer, 16 / deployer.mesh.dp / accumulate, accumulate)
      for key, leaf in pairs(params) do
        local difference = (leaf - expected[key]):abs():max():item()
        assert(difference <= 1e-9, ("%s differs by %g"):format(key, difference))
      end
    end)
  end
end

testing.finish()
