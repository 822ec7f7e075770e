--- The models that the specs of the Trainer train: a line through points, w [3] and b, and a
--- classifier whose labels count unevenly. Runs have work folders of their own.
local redco = require "redco"
local testing = require "testing"

local torch, nn, optim = redco.torch, redco.nn, redco.optim
local expect_close = testing.expect_close

local folder = testing.folder()
local n_workdirs = 0
local function new_workdir()
  n_workdirs = n_workdirs + 1
  return ("%s/%d"):format(folder, n_workdirs)
end

local function last_workdir() return ("%s/%d"):format(folder, n_workdirs) end

local function deployer(options)
  options = options or {}
  options.seed = options.seed or 1
  options.verbose = false
  return redco.Deployer(options)
end

-- Examples {x = [3], y} of a line, and a model {w [3], b}.
local function examples_of(n)
  local rng = torch.Generator(99)
  local x = torch.randn({ n, 3 }, { generator = rng })
  local y = x:matmul(torch.tensor { 1.0, -2.0, 0.5 }) + 0.3
  local examples = {}
  for i = 1, n do examples[i] = { x = x[i - 1], y = y[i - 1]:item(), number = i } end
  return examples
end

local function collate(examples)
  local x, y = {}, {}
  for i, example in ipairs(examples) do x[i], y[i] = example.x, example.y end
  return { x = torch.stack(x), y = torch.tensor(y) }
end

local function start() return { w = torch.zeros { 3 }, b = torch.zeros {} } end

local function predict(params, batch) return batch.x:matmul(params.w) + params.b end

local function squared_loss(_, _, params, batch)
  return (predict(params, batch) - batch.y):square():mean()
end

local function trainer_of(changes)
  local options = {
    deployer = deployer(), collate_fn = collate, loss_fn = squared_loss, params = start(),
    optimizer = optim.sgd { learning_rate = 0.1 },
  }
  for key, value in pairs(changes or {}) do options[key] = value end
  return redco.Trainer(options)
end

local function metrics_of(workdir)
  local lines = {}
  for _, line in redco.data.lines(workdir .. "/metrics.jsonl"):ipairs() do
    local entry = {}
    for key, value in line:gmatch '"([%w_]+)": ?([^,}]+)' do
      entry[key] = tonumber(value) or value
    end
    lines[#lines + 1] = entry
  end
  return lines
end

local function copy(params) return redco.tree.map(function(p) return p:detach():clone() end,
  params) end

local function expect_same_params(a, b, tolerance)
  for name, tensor in pairs(b) do
    expect_close(a[name]:detach(), tensor:detach(), tolerance or 1e-6, tolerance or 1e-7)
  end
end

-- Labels of which a different number counts in each example, as tokens of sentences.
local function weighted_examples()
  local rng, examples = torch.Generator(4), {}
  for i = 1, 12 do
    local labels = torch.full({ 5 }, -100, { dtype = "int64" })
    for j = 0, (i - 1) % 5 do labels[j] = (i + j) % 4 end
    examples[i] = { x = torch.randn({ 5, 3 }, { generator = rng }), labels = labels }
  end
  return examples
end

local function weighted_trainer(changes)
  changes.collate_fn = function(examples)
    local x, labels = {}, {}
    for i, example in ipairs(examples) do x[i], labels[i] = example.x, example.labels end
    return { x = torch.stack(x), labels = torch.stack(labels) }
  end
  changes.loss_fn = function(_, _, params, batch)
    return nn.cross_entropy(nn.linear(params, batch.x), batch.labels)
  end
  changes.params = nn.Linear(3, 4, { generator = torch.Generator(2) })
  return trainer_of(changes)
end

local regression = {
  new_workdir = new_workdir, last_workdir = last_workdir, deployer = deployer,
  examples_of = examples_of, collate = collate, start = start, predict = predict,
  squared_loss = squared_loss, trainer_of = trainer_of, metrics_of = metrics_of, copy = copy,
  expect_same_params = expect_same_params, weighted_examples = weighted_examples,
  weighted_trainer = weighted_trainer,
}

return regression
