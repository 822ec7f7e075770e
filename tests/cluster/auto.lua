-- Trains a small model in a layout that is chosen, or given, and prints its losses and the layout.
local redco = require "redco"

local o = redco.options {
  n_model_shards = "1", zero = "0", sequence_parallel = "false", memory = "", rule = false,
  batch = 4, how = "fit", n_pipeline_stages = 1,
}
local function choice(text)
  if text == "auto" then return text end
  if text == "true" or text == "false" then return text == "true" end
  return tonumber(text)
end
local torch, nn = redco.torch, redco.nn
local deployer = redco.Deployer {
  seed = 1, n_model_shards = choice(o.n_model_shards), zero = choice(o.zero),
  n_pipeline_stages = o.n_pipeline_stages,
  sequence_parallel = choice(o.sequence_parallel), verbose = false,
  memory = o.memory ~= "" and tonumber(o.memory) or nil,
}
local is_auto = o.n_model_shards == "auto" or o.zero == "auto"
if is_auto then
  local ok, message = pcall(function() return deployer.mesh.mp end)
  assert(not ok and message:find("deployer.mesh: the layout is not known yet", 1, true), message)
end
local rng = deployer:gen_rng()
-- Larger than a few buckets of gradients, so that sharing them saves memory.
local params = { layers = {} }
for i = 1, 16 do
  params.layers[i] = {
    up = nn.Linear(512, 2048, { generator = rng, bias = false }),
    down = nn.Linear(2048, 512, { generator = rng, bias = false }),
  }
end
local losses = {}
torch.manual_seed(5)
local trainer = redco.Trainer {
  deployer = deployer, params = params,
  optimizer = redco.optim.adamw { learning_rate = deployer:get_lr_schedule_fn {
    train_size = 24, per_device_batch_size = o.batch, n_epochs = 1, learning_rate = 1e-4,
    global_batch_size = 8 } },
  params_sharding_rules = o.rule and { { "up.weight", 0 } } or nil,
  collate_fn = function(examples)
    local rows = {}
    for i, example in ipairs(examples) do rows[i] = torch.full({ 512 }, example / 24) end
    torch.rand(3)  -- draws from the default generator
    return { x = torch.stack(rows) }
  end,
  loss_fn = function(_, _, p, batch)
    local function run(layer, y) return y + nn.linear(layer.down, nn.linear(layer.up, y):relu()) end
    local y = batch.x
    for _, layer in ipairs(p.layers) do
      y = o.n_pipeline_stages > 1 and nn.block(run, layer, y) or run(layer, y)
    end
    return (y - 2 * batch.x):square():mean()
  end,
}
local examples = {}
for i = 1, 24 do examples[i] = i end
if o.how == "fit" then
  trainer:fit {
    train_examples = examples, per_device_batch_size = o.batch, n_epochs = 1, global_batch_size = 8,
    on_step = function(event) losses[#losses + 1] = ("%.6f"):format(event.metrics.loss) end,
  }
else
  for i = 1, 3 do
    local own = {}
    for k = 1, 8 do own[k] = (i - 1) * 8 + k end
    losses[i] = ("%.6f"):format(trainer:train_step { examples = own }.loss)
  end
end
local drawn = torch.rand(1):item()
local held = trainer:memory()
if deployer.process_id == 0 then
  print(table.concat(losses, " "))
  print(("mp = %d, params %.2f, states %.2f, drawn %.6f"):format(deployer.mesh.mp,
    held.params.here / held.params.whole, held.opt_state.here / held.opt_state.whole, drawn))
end
