-- How much memory the garbage of tensors holds: 10,000 temporaries of 1 MB, then 1,000 training
-- steps, both with many examples resident in Lua tables. One JSON line.
local clock = require "clock"
local redco = require "redco"
local torch, nn = redco.torch, redco.nn

local o = redco.options { temporaries = 10000, steps = 1000, resident = 100000 }

local examples = {}
for i = 1, o.resident do examples[i] = { x = i % 7, y = i % 3 } end

local keep  -- the newest
local before, most = clock.rss_mb(), 0
local start = clock.now()
for i = 1, o.temporaries do
  keep = torch.empty { 262144 }:fill_(i)  -- 1 MB
  if i % 100 == 0 then most = math.max(most, clock.rss_mb()) end
end
assert(keep:size(0) == 262144)
local per_temporary = (clock.now() - start) / o.temporaries * 1e6

local rss = {}
local n = 0
local trainer = redco.Trainer {
  deployer = redco.Deployer { seed = 0, verbose = false },
  collate_fn = function(batch)
    n = n + 1
    if n % 100 == 0 then rss[#rss + 1] = clock.rss_mb() end
    local x, y = {}, {}
    for i, example in ipairs(batch) do x[i], y[i] = { example.x, 1 }, example.y end
    return { x = torch.tensor(x):float(), y = torch.tensor(y) }
  end,
  loss_fn = function(rng, state, params, batch, is_training)
    return nn.cross_entropy(nn.mlp(params, batch.x), batch.y)
  end,
  params = nn.MLP { 2, 256, 256, 3 },
  optimizer = redco.optim.adamw { learning_rate = 1e-3 },
}
trainer:fit {
  train_examples = examples, per_device_batch_size = 64, n_epochs = 1, max_steps = o.steps,
}
print(('{"name": "memory", "temporaries_rss_growth_mb": %.1f, "us_per_temporary": %.1f, '
  .. '"steps_rss_growth_mb": %.1f}'):format(most - before, per_temporary, rss[#rss] - rss[2]))
