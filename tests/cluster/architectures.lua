-- The layouts that are found for unusual models move no more than layouts by hand, hold no more,
-- and change no number. Two processes.
local models = require "unusual_models"
local redco = require "redco"
local testing = require "testing"

local nn, optim, torch, tree = redco.nn, redco.optim, redco.torch, redco.tree
local test = testing.test

local deployer = redco.Deployer {
  seed = 1, n_model_shards = tonumber(os.getenv "WORLD_SIZE"), verbose = false,
}
local n_shards = deployer.mesh.mp

local examples = {}
do
  local generator = torch.Generator(6)
  for i = 1, models.batch do
    examples[i] = torch.randint(models.vocabulary, { models.length + 1 }, { generator = generator })
  end
end

local function collate(rows) return { ids = torch.stack(rows) } end

local function loss_of(model, params, batch)
  local x = torch.embedding(params.embedding, batch.ids:narrow(1, 0, models.length))
  for _, p in ipairs(params.blocks) do x = model.block(p, x) end
  local logits = nn.linear(params.head, nn.rms_norm(params.norm, x))
  return nn.cross_entropy(logits, batch.ids:narrow(1, 1, models.length))
end

local function params_of(model)
  local generator = torch.Generator(7)
  local params = { blocks = {}, norm = { weight = torch.ones { models.width } },
    embedding = torch.randn({ models.vocabulary, models.width }, { generator = generator }),
    head = { weight = torch.randn({ models.vocabulary, models.width },
      { generator = generator }) * 0.1 } }
  for i = 1, models.n_layers do params.blocks[i] = model.params() end
  return params
end

local function copy(params) return tree.map(function(leaf) return leaf:clone() end, params) end
local function sgd() return optim.sgd { learning_rate = 0.1 } end

--- The loss after one step, in one process.
local function expected_loss(model, params)
  params = copy(params)
  local batch, optimizer = collate(examples), sgd()
  local grads = redco.grad(function(p) return loss_of(model, p, batch) end)(params)
  optimizer:step(grads, optimizer:init(params), params)
  return loss_of(model, params, batch):item()
end

--- Trains a step; returns the loss after it, and what a further step sends and a process holds.
local function measure(model, params, rules)
  local trainer = redco.Trainer {
    deployer = deployer, params = copy(params), collate_fn = collate, optimizer = sgd(),
    loss_fn = function(_, _, p, batch) return loss_of(model, p, batch) end,
    params_sharding_rules = rules,
  }
  local function step()
    trainer:train { examples = examples, per_device_batch_size = models.batch }
  end
  step()
  local loss = trainer:eval_loss { examples = examples, per_device_batch_size = models.batch }
  local before = redco.sharding_counters().collectives.mp
  step()
  local after = redco.sharding_counters().collectives.mp
  local found = { bytes = 0, collectives = 0 }
  for kind, counter in pairs(after) do
    found.bytes = found.bytes + counter.bytes - before[kind].bytes
    found.collectives = found.collectives + counter.count - before[kind].count
  end
  local memory = trainer:memory().params
  found.held = memory.here / memory.whole
  return loss, found
end

local function expect_near(name, actual, expected)
  if math.abs(actual - expected) <= 1e-5 * math.abs(expected) then return end
  error(("%s: expected %.7f, got %.7f"):format(name, expected, actual), 2)
end

for _, model in ipairs(models) do
  test(("%s over %d"):format(model.name, n_shards), function()
    local params = params_of(model)
    local expected = expected_loss(model, params)
    local loss, found = measure(model, params)
    expect_near("loss", loss, expected)
    local rules = { { "embedding", 0 }, { "head.weight", 0 } }
    for _, rule in ipairs(model.rules) do rules[#rules + 1] = rule end
    local by_hand_loss, by_hand = measure(model, params, rules)
    expect_near("loss by hand", by_hand_loss, expected)
    local text = ("found: %d bytes in %d collectives, %.3f held; by hand: %d in %d, %.3f"):format(
      found.bytes, found.collectives, found.held, by_hand.bytes, by_hand.collectives, by_hand.held)
    if os.getenv "REDCO_SHOW" and deployer.process_id == 0 then print(model.name, text) end
    assert(found.bytes <= 1.05 * by_hand.bytes, text)
    assert(found.collectives <= by_hand.collectives + models.n_layers, text)
    assert(found.held <= math.max(by_hand.held, 1 / n_shards + 0.05), text)
  end)
end

testing.finish()
