-- The Trainer, the Predictor and the Deployer as a script sees them. D3 to D16 are the defects of
-- Redco that are not to come back; what one test cannot see from Lua stands in
-- tests/engine/trainer_test.cpp and schedule_test.cpp under the same number.
local redco = require "redco"
local testing = require "testing"

local torch, nn, optim = redco.torch, redco.nn, redco.optim
local test, expect_error = testing.test, testing.expect_error
local expect_close, expect_equal = testing.expect_close, testing.expect_equal

local folder = os.tmpname()
os.remove(folder)
assert(os.execute(("mkdir -p '%s'"):format(folder)) == 0)
local n_workdirs = 0
local function new_workdir()
  n_workdirs = n_workdirs + 1
  return ("%s/%d"):format(folder, n_workdirs)
end

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
  for _, line in ipairs(redco.data.lines(workdir .. "/metrics.jsonl")) do
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

-- ---- fit ----

test("fit learns from a list, and counts optimizer steps", function()
  local trainer, examples = trainer_of(), examples_of(64)
  local before = trainer:eval_loss { examples = examples, per_device_batch_size = 16 }
  trainer:fit { train_examples = examples, per_device_batch_size = 8, n_epochs = 20 }
  expect_equal(trainer.step, 160)
  local after = trainer:eval_loss { examples = examples, per_device_batch_size = 16 }
  assert(after < before * 1e-3, ("%g, then %g"):format(before, after))
  expect_close(trainer.params.w:detach(), torch.tensor { 1.0, -2.0, 0.5 }, 0.05, 0.05)
end)

test("fit asks a function for the examples of each epoch, counted from 0", function()
  local asked, seen = {}, {}
  local trainer = trainer_of { collate_fn = function(examples)
    for _, example in ipairs(examples) do seen[#seen + 1] = example.number end
    return collate(examples)
  end }
  local all = examples_of(12)
  trainer:fit {
    train_examples = function(epoch_idx)
      asked[#asked + 1] = epoch_idx
      return { unpack(all, epoch_idx * 4 + 1, epoch_idx * 4 + 4) }
    end,
    per_device_batch_size = 2, n_epochs = 3,
  }
  expect_equal(table.concat(asked, " "), "0 1 2")
  expect_equal(trainer.step, 6)
  for epoch = 0, 2 do
    local numbers = { unpack(seen, epoch * 4 + 1, epoch * 4 + 4) }
    table.sort(numbers)
    expect_equal(table.concat(numbers, " "), ("%d %d %d %d"):format(epoch * 4 + 1, epoch * 4 + 2,
      epoch * 4 + 3, epoch * 4 + 4))
  end
end)

test("each epoch uses every example once, in another order, the same in each run", function()
  local function orders(seed)
    local seen = {}
    local trainer = trainer_of { deployer = deployer { seed = seed },
      collate_fn = function(examples)
      for _, example in ipairs(examples) do seen[#seen + 1] = example.number end
      return collate(examples)
    end }
    trainer:fit { train_examples = examples_of(10), per_device_batch_size = 4, n_epochs = 2 }
    return { unpack(seen, 1, 10) }, { unpack(seen, 11, 20) }
  end
  local first, second = orders(1)
  local text = table.concat(first, " ")
  assert(text ~= table.concat(second, " "))
  expect_equal(text, table.concat((orders(1)), " "))
  assert(text ~= table.concat((orders(2)), " "))
  table.sort(first)
  table.sort(second)
  expect_equal(table.concat(first, " "), "1 2 3 4 5 6 7 8 9 10")
  expect_equal(table.concat(second, " "), "1 2 3 4 5 6 7 8 9 10")
end)

test("the last, smaller batch is used", function()
  local sizes = {}
  local trainer = trainer_of { collate_fn = function(examples)
    sizes[#sizes + 1] = #examples
    return collate(examples)
  end }
  trainer:train { examples = examples_of(10), per_device_batch_size = 4 }
  expect_equal(table.concat(sizes, " "), "4 4 2")
  expect_equal(trainer.step, 3)
end)

test("max_steps ends within an epoch, and counts from the step it starts with", function()
  local trainer = trainer_of()
  trainer:fit { train_examples = examples_of(40), per_device_batch_size = 4, n_epochs = 3,
    max_steps = 13 }
  expect_equal(trainer.step, 13)
  trainer:fit { train_examples = examples_of(40), per_device_batch_size = 4, n_epochs = 3,
    max_steps = 13 }
  expect_equal(trainer.step, 13)
  trainer:fit { train_examples = examples_of(40), per_device_batch_size = 4, n_epochs = 0 }
  expect_equal(trainer.step, 13)
end)

test("one step is the closed form", function()
  local trainer, examples = trainer_of(), examples_of(5)
  local batch = collate(examples)
  trainer:train { examples = examples, per_device_batch_size = 5 }
  -- From zero: the gradient of mean (w x + b - y)^2 is -2 mean(y x) and -2 mean(y).
  expect_close(trainer.params.w:detach(), (batch.y:unsqueeze(-1) * batch.x):mean(0) * 0.2, 1e-5)
  expect_close(trainer.params.b:detach(), batch.y:mean() * 0.2, 1e-5)
end)

test("the params that were given stay as they are", function()
  local params = start()
  local trainer = trainer_of { params = params }
  trainer:train { examples = examples_of(4), per_device_batch_size = 2 }
  expect_close(params.w, torch.zeros { 3 })
  assert(not params.w.requires_grad)
  assert(trainer.params.w:detach():abs():sum():item() > 0)
end)

test("loss_fn gets rng, state, params, batch and is_training, and state has apply_fn", function()
  local flags, steps = {}, {}
  local function apply(...) return predict(...) end
  local trainer = trainer_of { apply_fn = apply, loss_fn = function(rng, state, params, batch,
    is_training)
    assert(tostring(rng):find "^Generator")
    assert(rawequal(state.apply_fn, apply))
    assert(state.params.w and state.opt_state)
    steps[#steps + 1], flags[#flags + 1] = state.step, tostring(is_training)
    return (state.apply_fn(params, batch) - batch.y):square():mean()
  end }
  trainer:train { examples = examples_of(4), per_device_batch_size = 2 }
  trainer:eval_loss { examples = examples_of(2), per_device_batch_size = 2 }
  expect_equal(table.concat(steps, " "), "0 1 2")
  expect_equal(table.concat(flags, " "), "true true false")
  expect_equal(trainer.state.step, 2)
  assert(rawequal(trainer.state.apply_fn, apply))
end)

-- ---- the defects of Redco ----

test("D3: the schedule counts optimizer steps, accumulation or not", function()
  local function rates(accumulate)
    local workdir = new_workdir()
    local d = deployer { workdir = workdir }
    local schedule = d:get_lr_schedule_fn { train_size = 32, n_epochs = 2, learning_rate = 1e-2,
      global_batch_size = 8, per_device_batch_size = 8 / accumulate, warmup_steps = 2 }
    trainer_of { deployer = d, lr_schedule_fn = schedule,
      optimizer = optim.sgd { learning_rate = schedule } }:fit {
      train_examples = examples_of(32), n_epochs = 2, global_batch_size = 8,
      per_device_batch_size = 8 / accumulate,
    }
    local found = {}
    for i, entry in ipairs(metrics_of(workdir)) do found[i] = ("%.6f"):format(entry.lr) end
    return found
  end
  local expected = {}
  for step = 0, 7 do
    expected[step + 1] = ("%.6f"):format(step < 2 and 1e-2 * step / 2 or 1e-2 * (8 - step) / 6)
  end
  expect_equal(table.concat(rates(1), " "), table.concat(expected, " "))
  expect_equal(table.concat(rates(4), " "), table.concat(expected, " "))
end)

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

test("D4: accumulation gives the step of the whole batch, for losses with a weight too", function()
  for _, make in ipairs { trainer_of, weighted_trainer } do
    local examples = make == trainer_of and examples_of(12) or weighted_examples()
    local workdirs, params = {}, {}
    for i, micro in ipairs { 12, 6, 5, 4, 1 } do
      workdirs[i] = new_workdir()
      local whole = 12 % micro == 0
      local trainer = make { deployer = deployer { workdir = workdirs[i] },
        optimizer = optim.adamw { learning_rate = 0.05 },
        accumulate_grad_batches = not whole and math.ceil(12 / micro) or nil }
      trainer:fit { train_examples = examples, n_epochs = 3, per_device_batch_size = micro,
        global_batch_size = whole and 12 or nil }
      expect_equal(trainer.step, 3)
      params[i] = copy(trainer.params)
      expect_same_params(params[i], params[1], 2e-5)
      local first = metrics_of(workdirs[1])
      for step, entry in ipairs(metrics_of(workdirs[i])) do
        assert(math.abs(entry.loss - first[step].loss) < 1e-5, "another loss")
        assert(math.abs(entry.grad_norm - first[step].grad_norm) < 1e-4, "another norm")
      end
    end
  end
end)

test("D4: the evaluated loss does not depend on the batch size", function()
  local trainer, examples = weighted_trainer {}, weighted_examples()
  local whole = trainer:eval_loss { examples = examples, per_device_batch_size = 12 }
  for _, size in ipairs { 1, 5, 7, 100 } do
    local loss = trainer:eval_loss { examples = examples, per_device_batch_size = size }
    assert(math.abs(loss - whole) < 1e-6, ("%g, not %g"):format(loss, whole))
  end
end)

test("D4: a weight is a number, a tensor of one element, or left out", function()
  local function after(weight)
    local trainer = trainer_of { accumulate_grad_batches = 3, loss_fn = function(...)
      return squared_loss(...), weight and weight(select(4, ...)) or nil
    end }
    trainer:train { examples = examples_of(7), per_device_batch_size = 3 }
    return copy(trainer.params)
  end
  local expected = after(nil)
  expect_same_params(after(function(batch) return batch.y:numel() end), expected)
  expect_same_params(after(function(batch) return torch.tensor(batch.y:numel()) end), expected)
  expect_same_params(after(function(batch) return torch.tensor { batch.y:numel() * 2.0 } end),
    expected)
  local other = after(function() return 1 end)
  assert((other.w - expected.w):abs():max():item() > 1e-4, "the weight changes nothing")
end)

test("D5: no metric is read while its own step is the latest", function()
  local workdir, lines = new_workdir(), {}
  local trainer = trainer_of { deployer = deployer { workdir = workdir },
    collate_fn = function(examples)
    local file = io.open(workdir .. "/metrics.jsonl")
    local n = 0
    if file then
      for _ in file:lines() do n = n + 1 end
      file:close()
    end
    lines[#lines + 1] = n
    return collate(examples)
  end }
  trainer:train { examples = examples_of(8), per_device_batch_size = 2 }
  expect_equal(table.concat(lines, " "), "0 0 1 2")
  expect_equal(#metrics_of(workdir), 4)
end)

test("D6: float16, which would need loss scaling, is refused by name", function()
  expect_error(function() trainer_of { compute_dtype = "float16" } end, "trainer_spec.lua:",
    "compute_dtype", "float16", "bfloat16")
  expect_error(function() trainer_of { compute_dtype = "int64" } end,
    "trainer_spec.lua:", "compute_dtype")
  expect_error(function() trainer_of { compute_dtype = "floot" } end, "trainer_spec.lua:",
    "compute_dtype", "floot")
end)

test("D7: sets smaller than a batch are used, empty ones are errors that say so", function()
  local trainer = trainer_of()
  trainer:fit { train_examples = examples_of(3), eval_examples = examples_of(2),
    per_device_batch_size = 100, n_epochs = 2 }
  expect_equal(trainer.step, 2)
  local before = copy(trainer.params)
  expect_error(function()
    trainer:fit { train_examples = {}, per_device_batch_size = 2, n_epochs = 1 }
  end, "trainer_spec.lua:", "empty")
  expect_error(function()
    trainer:fit { train_examples = function() return {} end,
      per_device_batch_size = 2, n_epochs = 1 }
  end, "trainer_spec.lua:", "empty")
  expect_error(function()
    trainer:fit { train_examples = examples_of(3), eval_examples = {}, per_device_batch_size = 2,
      n_epochs = 1 }
  end, "trainer_spec.lua:", "eval_examples", "empty")
  expect_error(function() trainer:train { examples = {}, per_device_batch_size = 2 } end,
    "trainer_spec.lua:", "empty")
  expect_error(function() trainer:eval_loss { examples = {}, per_device_batch_size = 2 } end,
    "trainer_spec.lua:", "empty")
  expect_equal(trainer.step, 2)
  expect_same_params(trainer.params, before)
end)

test("D11: a run resumed without optimizer state keeps its place in the schedule", function()
  local workdir, asked = new_workdir(), {}
  local trainer = trainer_of { deployer = deployer { workdir = workdir }, step = 7,
    optimizer = optim.adamw { learning_rate = function(step)
      asked[step] = true
      return step < 7 and 1 or 1e-3
    end } }
  trainer:train { examples = examples_of(4), per_device_batch_size = 2 }
  expect_equal(trainer.step, 9)
  assert(asked[7] and asked[8] and not asked[0])
  local lines = metrics_of(workdir)
  expect_equal(lines[1].step, 7)
  expect_equal(lines[1].lr, 1e-3)
  assert(trainer.params.w:detach():abs():max():item() < 0.01, "the first rates were applied")
end)

test("D13: a second Deployer doubles no line of the first", function()
  local one, two = new_workdir(), new_workdir()
  local first = deployer { workdir = one }
  local second = deployer { workdir = two }
  first:log_info "to the first"
  second:log_info "to the second"
  first:log_metrics({ value = 1 }, 0)
  local function count(workdir, text)
    local _, n = redco.data.read(workdir .. "/log.txt"):gsub(text, "")
    return n
  end
  expect_equal(count(one, "to the first"), 1)
  expect_equal(count(one, "to the second"), 0)
  expect_equal(count(two, "to the second"), 1)
  expect_equal(count(two, "to the first"), 0)
  expect_equal(#metrics_of(one), 1)
end)

test("D15: compute_dtype casts floating-point parameters only; the masters stay float32", function()
  local seen
  local params = start()
  params.table_of_ids = torch.tensor { 300, 70000 }
  params.flag = torch.tensor { true }
  local trainer = trainer_of { params = params, compute_dtype = "bfloat16",
    optimizer = optim.adamw { learning_rate = 0.1 },
    loss_fn = function(_, state, p, batch)
      seen = { w = p.w.dtype, ids = p.table_of_ids.dtype, flag = p.flag.dtype,
        master = state.params.w.dtype, last = p.table_of_ids[1]:item() }
      return (batch.x:bfloat16():matmul(p.w) + p.b - batch.y):float():square():mean()
    end }
  trainer:train { examples = examples_of(8), per_device_batch_size = 4 }
  expect_equal(seen.w, "bfloat16")
  expect_equal(seen.ids, "int64")
  expect_equal(seen.flag, "bool")
  expect_equal(seen.last, 70000)
  expect_equal(seen.master, "float32")
  expect_equal(trainer.params.w.dtype, "float32")
  for _, leaf in ipairs(redco.tree.leaves(trainer.state.opt_state)) do
    if torch.is_tensor(leaf) then expect_equal(leaf.dtype, "float32") end
  end
  -- Steps far below what bfloat16 resolves at 1 add up in the masters.
  local small = trainer_of { params = { w = torch.ones { 3 }, b = torch.zeros {} },
    compute_dtype = "bfloat16", optimizer = optim.sgd { learning_rate = 1e-4 },
    loss_fn = function(_, _, p) return p.w:sum() + p.b * 0 end }
  small:train { examples = examples_of(8), per_device_batch_size = 1 }
  expect_close(small.params.w:detach(), torch.full({ 3 }, 1 - 8e-4), 1e-6)
end)

test("D16: a frozen parameter needs no gradient and gets no state", function()
  local needs = {}
  local trainer = trainer_of {
    optimizer = optim.freeze(optim.adamw { learning_rate = 0.1 },
      function(name) return name == "w" end),
    loss_fn = function(rng, state, params, batch)
      needs.w, needs.b = params.w.requires_grad, params.b.requires_grad
      return squared_loss(rng, state, params, batch)
    end }
  trainer:train { examples = examples_of(4), per_device_batch_size = 2 }
  assert(not needs.w and needs.b)
  expect_close(trainer.params.w, torch.zeros { 3 })
  assert(trainer.params.b:item() ~= 0)
  for _, path in ipairs(redco.tree.paths(trainer.state.opt_state)) do
    assert(not path:find "%.w$", path)
  end
end)

-- ---- evaluation and prediction ----

test("predictions come in order, one per example, for any batch size", function()
  local trainer = trainer_of()
  local predictor = trainer:get_default_predictor { pred_fn = function(_, _, batch)
    return { twice = batch.y * 2, nested = { batch.x } }
  end }
  local examples = examples_of(11)
  for _, size in ipairs { 1, 3, 4, 11, 50 } do
    local preds = predictor:predict { examples = examples, per_device_batch_size = size,
      params = trainer.params }
    expect_equal(#preds, 11)
    for i, pred in ipairs(preds) do
      assert(math.abs(pred.twice:item() - 2 * examples[i].y) < 1e-6)
      expect_close(pred.nested[1], examples[i].x)
    end
  end
  expect_equal(#predictor:predict { examples = {}, per_device_batch_size = 2, params = {} }, 0)
end)

test("output_fn makes the predictions, any values", function()
  local predictor = redco.Predictor { deployer = deployer(), collate_fn = collate,
    pred_fn = function(_, params, batch) return predict(params, batch) end,
    output_fn = function(batch_preds)
      local texts = {}
      for i, value in ipairs(batch_preds:tolist()) do texts[i] = ("%.3f"):format(value) end
      return texts
    end }
  local preds = predictor:predict { examples = examples_of(5), per_device_batch_size = 2,
    params = { w = torch.zeros { 3 }, b = torch.tensor(0.25) } }
  expect_equal(table.concat(preds, " "), "0.250 0.250 0.250 0.250 0.250")
  expect_error(function()
    redco.Predictor { deployer = deployer(), collate_fn = collate,
      pred_fn = function(_, params, batch) return predict(params, batch) end,
      output_fn = function() return { 1 } end,
    }:predict { examples = examples_of(4), per_device_batch_size = 2, params = start() }
  end, "trainer_spec.lua:", "output_fn", "1", "2")
end)

test("pred_fn runs without gradients, with an rng of its own per batch", function()
  local function run()
    local predictor = redco.Predictor { deployer = deployer { seed = 4 }, collate_fn = collate,
      pred_fn = function(rng, params, batch)
        assert(not predict(params, batch).requires_grad, "a history is recorded")
        return torch.rand({ batch.y:numel() }, { generator = rng })
      end }
    local preds = predictor:predict { examples = examples_of(4), per_device_batch_size = 2,
      params = { w = torch.ones({ 3 }):requires_grad_(), b = torch.zeros {} } }
    for i = 1, 4 do preds[i] = preds[i]:item() end
    return preds
  end
  local a, b = run(), run()
  expect_equal(table.concat(a, " "), table.concat(b, " "))
  assert(a[1] ~= a[3], "two batches draw the same")
end)

test("fit evaluates after each epoch with loss and metrics; what it wrote", function()
  local workdir, calls = new_workdir(), {}
  local trainer = trainer_of { deployer = deployer { workdir = workdir } }
  trainer:fit {
    train_examples = examples_of(8), eval_examples = examples_of(5), per_device_batch_size = 4,
    eval_per_device_batch_size = 2, n_epochs = 2,
    eval_predictor = trainer:get_default_predictor { pred_fn = function(_, params, batch)
      return { y = predict(params, batch) }
    end },
    eval_metric_fn = function(examples, preds)
      calls[#calls + 1] = #examples
      expect_equal(#preds, #examples)
      local off = 0
      for i, example in ipairs(examples) do off = off + math.abs(preds[i].y:item() - example.y) end
      return { mean_off = off / #examples, tensor = torch.tensor(2.5) }
    end,
  }
  expect_equal(table.concat(calls, " "), "2 5 5")  -- the sanity check, then each epoch
  local text = redco.data.lines(workdir .. "/metrics.jsonl")
  expect_equal(#text, 2 * (2 + 1))
  local steps, evaluations = {}, 0
  for i, entry in ipairs(metrics_of(workdir)) do
    if entry.kind then
      evaluations = evaluations + 1
      expect_equal(entry.kind, '"eval"')
      assert(entry.loss and entry.mean_off, text[i])
      expect_equal(entry.tensor, 2.5)
      expect_equal(entry.step, evaluations * 2)
    else
      steps[#steps + 1] = entry.step
      assert(entry.loss and entry.grad_norm, text[i])
      expect_equal(entry.lr, 0.1)
    end
  end
  expect_equal(evaluations, 2)
  expect_equal(table.concat(steps, " "), "0 1 2 3")
  local log = redco.data.read(workdir .. "/log.txt")
  for _, part in ipairs { "Parameters", "Sanity check (for evaluation loss) passed",
    "Sanity check (for evaluation metrics) passed", "mean_off" } do
    assert(log:find(part, 1, true), "log.txt has no " .. part .. ":\n" .. log)
  end
end)

test("the sanity check finds what is wrong before the first step, and changes no result", function()
  local workdir = new_workdir()
  local trainer = trainer_of { deployer = deployer { workdir = workdir } }
  local function fit(t, check)
    t:fit { train_examples = examples_of(8), eval_examples = examples_of(4), n_epochs = 1,
      per_device_batch_size = 4, eval_sanity_check = check,
      eval_predictor = t:get_default_predictor { pred_fn = function(_, params, batch)
        return predict(params, batch)
      end },
      eval_metric_fn = function() error "no metric" end }
  end
  local message = expect_error(function() fit(trainer) end, "no metric")
  assert(message:find "^trainer_spec.lua:%d+: no metric", message)
  expect_equal(trainer.step, 0)
  expect_error(function() fit(trainer, false) end, "no metric")
  expect_equal(trainer.step, 2)

  local function noise(check)
    local seen, d = {}, deployer()
    local t = trainer_of { deployer = d, loss_fn = function(rng, state, params, batch)
      if #seen < 3 or not check then seen[#seen + 1] = torch.rand({ 1 },
        { generator = rng }):item() end
      return squared_loss(rng, state, params, batch)
    end }
    t:fit { train_examples = examples_of(8), eval_examples = examples_of(4), n_epochs = 1,
      per_device_batch_size = 4, eval_sanity_check = check }
    return copy(t.params), torch.rand({ 1 }, { generator = d:gen_rng() }):item()
  end
  local with, drawn = noise(true)
  local without, drawn_too = noise(false)
  expect_same_params(with, without, 0)
  expect_equal(drawn, drawn_too)
end)

test("eval_loss = false leaves the loss out", function()
  local workdir = new_workdir()
  local trainer = trainer_of { deployer = deployer { workdir = workdir } }
  trainer:fit { train_examples = examples_of(4), eval_examples = examples_of(4), eval_loss = false,
    n_epochs = 1, per_device_batch_size = 4 }
  expect_equal(#metrics_of(workdir), 1)
end)

-- ---- steps of one's own, schedules, dropout ----

test("train_step_fn replaces the step", function()
  local seen = {}
  local trainer = trainer_of { train_step_fn = function(rng, state, batch, defaults)
    assert(tostring(rng):find "^Generator" and defaults.loss_fn)
    seen[#seen + 1] = state.step
    local loss, grads = defaults.value_and_grad(function(params)
      return defaults.loss_fn(rng, state, params, batch, true)
    end)
    grads = redco.tree.map(function(g) return g * 0.5 end, grads)
    local norm = defaults.apply_gradients(grads)
    return { loss = loss, half_norm = norm, rate = defaults.learning_rate }
  end, deployer = deployer { workdir = new_workdir() } }
  local workdir = ("%s/%d"):format(folder, n_workdirs)
  trainer:train { examples = examples_of(8), per_device_batch_size = 4 }
  expect_equal(table.concat(seen, " "), "0 1")
  expect_equal(trainer.step, 2)
  local expected = trainer_of { optimizer = optim.sgd { learning_rate = 0.05 } }
  expected:train { examples = examples_of(8), per_device_batch_size = 4 }
  expect_same_params(trainer.params, expected.params)
  local lines = metrics_of(workdir)
  assert(lines[1].loss and lines[1].half_norm and lines[2].rate == 0.1)
end)

test("a train_step_fn that returns no table, or never steps, is handled", function()
  expect_error(function()
    trainer_of { train_step_fn = function() return 5 end }:train { examples = examples_of(2),
      per_device_batch_size = 2 }
  end, "trainer_spec.lua:", "train_step_fn", "table of metrics", "5")
  local trainer = trainer_of { train_step_fn = function() return {} end }
  trainer:train { examples = examples_of(4), per_device_batch_size = 2 }
  expect_equal(trainer.step, 2)
  expect_error(function()
    trainer_of { accumulate_grad_batches = 2, train_step_fn = function() return {} end }
  end, "trainer_spec.lua:", "accumulate_grad_batches", "train_step_fn")
end)

test("lr_schedule_fn is logged where the optimizer has no rate of its own to tell", function()
  local workdir = new_workdir()
  local trainer = trainer_of { deployer = deployer { workdir = workdir },
    lr_schedule_fn = function(step) return 1 / (step + 1) end,
    optimizer = optim.sgd { learning_rate = function(step) return 1 / (step + 1) end } }
  trainer:train { examples = examples_of(6), per_device_batch_size = 2 }
  for i, entry in ipairs(metrics_of(workdir)) do
    assert(math.abs(entry.lr - 1 / i) < 1e-9, entry.lr)
  end
end)

test("get_lr_schedule_fn: cosine, a ratio of warm-up, the ends, and refusals", function()
  local d = deployer()
  local schedule = d:get_lr_schedule_fn { train_size = 100, per_device_batch_size = 10,
    n_epochs = 2,
    learning_rate = 1, schedule_type = "cosine", warmup_ratio = 0.5, init_learning_rate = 0.2,
    end_learning_rate = 0.1 }
  assert(math.abs(schedule(0) - 0.2) < 1e-9)
  assert(math.abs(schedule(5) - 0.6) < 1e-9)
  assert(math.abs(schedule(10) - 1) < 1e-9)
  assert(math.abs(schedule(15) - 0.55) < 1e-9)
  assert(math.abs(schedule(20) - 0.1) < 1e-9)
  local function wrong(changes, ...)
    local options = { train_size = 100, per_device_batch_size = 10, n_epochs = 2,
      learning_rate = 1 }
    for key, value in pairs(changes) do options[key] = value end
    expect_error(function() d:get_lr_schedule_fn(options) end, "trainer_spec.lua:", ...)
  end
  wrong({ schedule_type = "square" }, "square", "linear", "cosine")
  wrong({ warmup_ratio = 2 }, "warmup_ratio", "2")
  wrong({ train_size = 0 }, "train_size")
  wrong({ learning_rate = 0 }, "learning_rate")
  wrong({ global_batch_size = 15 }, "15", "10", "20")
  wrong({ warmup = 3 }, "'warmup'")
  expect_equal(d:get_accumulate_grad_batches { global_batch_size = 30, per_device_batch_size = 10 },
    3)
  local localized, global = d:get_local_global_micro_batch_size { per_device_batch_size = 10 }
  expect_equal(localized, 10)
  expect_equal(global, 10)
end)

local function dropout_run(seed)
  local trainer = trainer_of { deployer = deployer { seed = seed },
    loss_fn = function(rng, _, params, batch, is_training)
      local x = nn.dropout(batch.x, 0.5, { train = is_training, rng = rng })
      return (x:matmul(params.w) + params.b - batch.y):square():mean()
    end }
  trainer:fit { train_examples = examples_of(20), eval_examples = examples_of(4), n_epochs = 2,
    per_device_batch_size = 5 }
  return copy(trainer.params)
end

test("the same seed is the same run, dropout included; another seed another", function()
  local a, b, c = dropout_run(1), dropout_run(1), dropout_run(2)
  assert(torch.equal(a.w, b.w) and torch.equal(a.b, b.b))
  assert(not torch.equal(a.w, c.w))
end)

test("each step and each micro-batch draws its own numbers", function()
  local drawn = {}
  local trainer = trainer_of { accumulate_grad_batches = 2, loss_fn = function(rng, ...)
    local value = torch.rand({ 1 }, { generator = rng }):item()
    assert(not drawn[value], "drawn before")
    drawn[value] = true
    return squared_loss(rng, ...)
  end }
  trainer:train { examples = examples_of(12), per_device_batch_size = 2 }
  expect_equal(trainer.step, 3)
end)

test("set_train_state starts anew", function()
  local trainer = trainer_of { apply_fn = predict }
  trainer:train { examples = examples_of(4), per_device_batch_size = 2 }
  local once = copy(trainer.params)
  trainer:set_train_state { params = start() }
  expect_equal(trainer.step, 0)
  expect_close(trainer.params.w:detach(), torch.zeros { 3 })
  trainer:set_train_state { params = once, step = 5,
    optimizer = optim.adamw { learning_rate = 0.1 },
    apply_fn = squared_loss }
  expect_equal(trainer.step, 5)
  assert(rawequal(trainer.state.apply_fn, squared_loss))
  expect_same_params(trainer.params, once, 0)
end)

-- ---- errors ----

test("an error inside each callback carries that callback's file and line", function()
  local function here(offset) return debug.getinfo(2, "l").currentline + offset end
  local function expect_at(line, body)
    local ok, message = pcall(body)
    assert(not ok, "no error")
    local prefix = ("trainer_spec.lua:%d: mine"):format(line)
    assert(tostring(message):sub(1, #prefix) == prefix, tostring(message))
  end
  local examples = examples_of(4)
  local function train(changes)
    trainer_of(changes):train { examples = examples, per_device_batch_size = 2 }
  end
  local line = here(1)
  local function fails() error "mine" end
  expect_at(line, function() train { collate_fn = fails } end)
  expect_at(line, function() train { loss_fn = fails } end)
  expect_at(line, function() train { train_step_fn = fails } end)
  expect_at(line, function() train { apply_fn = fails, loss_fn = function(_,
    state) return state.apply_fn() end } end)
  expect_at(line, function() train { optimizer = optim.sgd { learning_rate = fails } } end)
  expect_at(line, function()
    trainer_of():fit { train_examples = fails, per_device_batch_size = 2, n_epochs = 1 }
  end)
  expect_at(line, function()
    train { train_step_fn = function(_, _, _, defaults) return defaults.value_and_grad(fails) end }
  end)
  local trainer = trainer_of()
  local function predictor(changes)
    local options = { pred_fn = function(_, params, batch) return predict(params, batch) end }
    for key, value in pairs(changes) do options[key] = value end
    return trainer:get_default_predictor(options)
  end
  local function predictions(changes)
    predictor(changes):predict { examples = examples, per_device_batch_size = 2,
      params = trainer.params }
  end
  expect_at(line, function() predictions { pred_fn = fails } end)
  expect_at(line, function() predictions { output_fn = fails } end)
  expect_at(line, function()
    trainer:fit { train_examples = examples, eval_examples = examples, per_device_batch_size = 2,
      n_epochs = 1, eval_predictor = predictor {}, eval_metric_fn = fails }
  end)
  -- An operator's own error, too.
  local _, message = pcall(train, { loss_fn = function(_, _, params, batch)
    return params.w:matmul(batch.x):sum() end })
  assert(message:find "^trainer_spec.lua:%d+: " and message:find("matmul", 1, true)
    or message:find("mat1", 1, true) or message:find("size", 1, true), message)
  -- And a Trainer whose callback failed goes on with the next set.
  local fail_now = true
  local flaky = trainer_of { loss_fn = function(...)
    if fail_now then error "mine" end
    return squared_loss(...)
  end }
  assert(not pcall(flaky.train, flaky, { examples = examples, per_device_batch_size = 2 }))
  fail_now = false
  flaky:train { examples = examples, per_device_batch_size = 2 }
  expect_equal(flaky.step, 2)
end)

test("a loss that cannot be trained on is refused with what was wrong", function()
  local function train(loss_fn, ...)
    expect_error(function()
      trainer_of { loss_fn = loss_fn }:train { examples = examples_of(4),
        per_device_batch_size = 4 }
    end, "trainer_spec.lua:", "loss_fn", ...)
  end
  train(function() end, "tensor of one element", "nil")
  train(function() return 0.5 end, "tensor of one element", "0.5")
  train(function(_, _, params) return params.w end, "[3]")
  train(function() return torch.tensor(1.5) end, "does not depend")
  train(function() return torch.tensor(1) end, "floating-point")
  train(function(...) return squared_loss(...), "many" end, "weight", "many")
  train(function(...) return squared_loss(...), torch.ones { 2 } end, "weight", "[2]")
end)

test("a loss that is no number stops the run and says where", function()
  local workdir = new_workdir()
  local trainer = trainer_of { deployer = deployer { workdir = workdir }, loss_fn = function(_,
    state, params, batch)
    local loss = squared_loss(nil, nil, params, batch)
    return state.step == 2 and loss * (0 / 0) or loss
  end }
  expect_error(function() trainer:train { examples = examples_of(20),
    per_device_batch_size = 2 } end,
    "trainer_spec.lua:", "step 2", "nan")
  assert(trainer.step <= 4)
  local lines = metrics_of(workdir)
  expect_equal(lines[3].step, 2)
  expect_equal(lines[3].loss, "null")
end)

test("micro-batches in which no label counts do not spoil the others, or a whole step", function()
  local labels = torch.full({ 5 }, -100, { dtype = "int64" })
  local empty = { x = torch.ones { 5, 3 }, labels = labels }
  local trainer = weighted_trainer { accumulate_grad_batches = 2 }
  trainer:train { examples = { weighted_examples()[3], empty }, per_device_batch_size = 1 }
  local expected = weighted_trainer {}
  expected:train { examples = { weighted_examples()[3] }, per_device_batch_size = 1 }
  expect_same_params(trainer.params, expected.params)
end)

test("a step in which no label counts at all changes nothing and is no NaN", function()
  local labels = torch.full({ 5 }, -100, { dtype = "int64" })
  local empty = { x = torch.ones { 5, 3 }, labels = labels }
  for _, accumulate in ipairs { 1, 2 } do
    local trainer = weighted_trainer { accumulate_grad_batches = accumulate }
    local before = copy(trainer.params)
    trainer:train { examples = { empty, empty }, per_device_batch_size = 1 }
    expect_same_params(trainer.params, before, 0)
  end
end)

test("wrong results of the other callbacks are refused by the callback's name", function()
  local examples = examples_of(4)
  local function train(changes, ...)
    expect_error(function()
      trainer_of(changes):train { examples = examples, per_device_batch_size = 2 }
    end, "trainer_spec.lua:", ...)
  end
  train({ collate_fn = function() end }, "collate_fn", "table of tensors", "nil")
  train({ collate_fn = function() return torch.zeros { 2 } end }, "collate_fn", "Tensor float32[2]")
  local trainer = trainer_of()
  local function fit(changes, ...)
    local options = { train_examples = examples, eval_examples = examples,
      per_device_batch_size = 2,
      n_epochs = 1, eval_metric_fn = function() return { a = 1 } end,
      eval_predictor = trainer:get_default_predictor { pred_fn = function(_, params, batch)
        return predict(params, batch)
      end } }
    for key, value in pairs(changes) do options[key] = value end
    expect_error(function() trainer:fit(options) end, "trainer_spec.lua:", ...)
  end
  fit({ eval_metric_fn = function() return 0.5 end }, "eval_metric_fn", "table of numbers", "0.5")
  fit({ eval_metric_fn = function() return { rouge = "high" } end }, "eval_metric_fn", "rouge",
    "high")
  fit({ eval_metric_fn = function() return { torch.ones { 2 } } end }, "eval_metric_fn")
  fit({ eval_predictor = trainer:get_default_predictor { pred_fn = function() return nil end } },
    "pred_fn")
  fit({ train_examples = function() return 5 end }, "train_examples", "a list", "5")
  fit({ train_examples = 5 }, "train_examples", "a list", "5")
  fit({ eval_examples = "all" }, "eval_examples", "a list")
  trainer:fit { train_examples = examples, per_device_batch_size = 2, n_epochs = 1 }
end)

test("what is no tree in the results of callbacks is refused by the callback's name", function()
  local examples, trainer = examples_of(4), trainer_of()
  expect_error(function()
    trainer_of { collate_fn = function() return { print } end }:train { examples = examples,
      per_device_batch_size = 2 }
  end, "trainer_spec.lua:", "collate_fn", "function")
  for name, pred in pairs { pred_fn = { pred_fn = function() return { a = print } end },
    output_fn = { pred_fn = function(_, _, batch) return batch end,
      output_fn = function() return { print, print } end } } do
    expect_error(function()
      trainer:get_default_predictor(pred):predict { examples = examples, per_device_batch_size = 2,
        params = {} }
    end, "trainer_spec.lua:", name, "function")
  end
end)

test("unknown arguments are refused with the nearest, later ones by name and reason", function()
  local examples = examples_of(2)
  local trainer = trainer_of()
  local function refused(body, ...) expect_error(body, "trainer_spec.lua:", ...) end
  refused(function() trainer_of { loss_func = 1 } end, "redco.Trainer", "'loss_func'", "'loss_fn'")
  refused(function() redco.Deployer { seed = 1, wrkdir = "x" } end,
    "redco.Deployer", "'wrkdir'", "'workdir'")
  refused(function() redco.Deployer {} end, "redco.Deployer", "'seed'")
  refused(function() redco.Deployer(42) end, "redco.Deployer", "named arguments")
  refused(function() redco.Deployer { jax_seed = 1, seed = 1 } end, "jax_seed", "seed")
  refused(function() redco.Deployer { seed = 1.5 } end, "seed", "an integer")
  refused(function() redco.Deployer { seed = 1, n_model_shards = 2 } end, "n_model_shards", "2")
  for _, name in ipairs { "n_processes", "process_id", "host0_address", "host0_port",
    "n_local_devices", "run_tensorboard", "wandb_init_kwargs" } do
    refused(function() redco.Deployer { seed = 1, [name] = 1 } end,
      "redco.Deployer: " .. name .. ":")
  end
  for _, name in ipairs { "params_sharded", "opt_state_sharded", "params_sharding_rules",
    "last_ckpt_info" } do
    refused(function() trainer_of { [name] = {} } end, "redco.Trainer: " .. name .. ":")
  end
  for _, name in ipairs { "save_ckpt_every_k_epochs", "save_last_ckpt",
    "save_argmin_ckpt_by_metrics",
    "save_argmax_ckpt_by_metrics", "save_opt_states", "save_float_dtype" } do
    refused(function()
      trainer:fit { train_examples = examples, per_device_batch_size = 2, n_epochs = 1,
        [name] = true }
    end, "Trainer:fit: " .. name .. ":")
  end
  refused(function()
    trainer:fit { train_examples = examples, per_device_batch_size = 2, n_epoch = 1, n_epochs = 1 }
  end, "Trainer:fit", "'n_epoch'", "'n_epochs'")
  refused(function() trainer:fit { per_device_batch_size = 2, n_epochs = 1 } end, "train_examples")
  refused(function() trainer:fit { train_examples = examples, n_epochs = 1 } end,
    "per_device_batch_size")
  refused(function() trainer:fit { train_examples = examples, per_device_batch_size = 2 } end,
    "n_epochs")
  refused(function() trainer:fit() end, "Trainer:fit")
  refused(function() trainer:train { examples = examples, per_device_batch_size = 0 } end,
    "per_device_batch_size", "0")
  refused(function() trainer:train { examples = examples, batch_size = 2 } end,
    "per_device_batch_size")
  refused(function() trainer:train { examples = examples, per_device_batch_size = 2,
    description = "x" } end,
    "'description'")
  refused(function() trainer:eval_loss { examples = examples, per_device_batch_size = 2,
    dsc = "x" } end,
    "'dsc'", "'desc'")
  refused(function() trainer:get_default_predictor {} end, "pred_fn")
  refused(function() trainer:get_default_predictor { pred_fn = 5 } end, "pred_fn", "a function")
  refused(function() redco.Predictor { deployer = deployer(), collate_fn = collate } end, "pred_fn")
  refused(function() redco.Predictor { deployer = {}, collate_fn = collate, pred_fn = collate } end,
    "deployer")
  local predictor = trainer:get_default_predictor { pred_fn = collate }
  refused(function() predictor:predict { examples = examples, per_device_batch_size = 2 } end,
    "params")
  refused(function()
    predictor:predict { examples = examples, per_device_batch_size = 2, params = {},
      params_replicated = true }
  end, "params_replicated")
  refused(function() trainer_of { params = {} } end, "nothing to train")
  refused(function() trainer_of { params = 5 } end, "params")
  refused(function() trainer_of { optimizer = 5 } end, "optimizer")
  refused(function() trainer_of { loss_fn = "x" } end, "loss_fn", "a function")
  refused(function() trainer_of { accumulate_grad_batches = 0 } end, "accumulate_grad_batches", "0")
  refused(function() trainer_of { step = -1 } end, "step", "-1")
  refused(function()
    trainer:fit { train_examples = examples, per_device_batch_size = 4, global_batch_size = 6,
      n_epochs = 1 }
  end, "global_batch_size", "6", "4", "8")
  refused(function()
    trainer:fit { train_examples = examples, per_device_batch_size = 2, n_epochs = 1,
      eval_examples = examples, eval_metric_fn = print }
  end, "eval_predictor", "eval_metric_fn")
  refused(function() return trainer.loss end, "'loss'", "step")
  refused(function() trainer:fitt {} end, "'fitt'")
end)

test("methods called with a dot instead of a colon, and objects of another kind", function()
  local trainer = trainer_of()
  expect_error(function() trainer.fit { n_epochs = 1 } end, "trainer_spec.lua:")
  expect_error(function() trainer.train(deployer(), {}) end, "trainer_spec.lua:")
  expect_error(function() deployer().gen_rng() end, "trainer_spec.lua:")
  expect_error(function() deployer():log_metrics({ a = {} }, 1) end, "trainer_spec.lua:", "a is")
end)

test("Deployer: gen_rng, log_info with a title and a step, log_metrics, workdir", function()
  local workdir = new_workdir()
  local d, same = deployer { workdir = workdir }, deployer()
  expect_equal(d.workdir, workdir)
  expect_equal(same.workdir, nil)
  local function draw(of) return torch.rand({ 1 }, { generator = of:gen_rng() }):item() end
  local first = draw(d)
  expect_equal(first, draw(same))
  assert(draw(d) ~= first)
  assert(draw(deployer { seed = 2 }) ~= first)
  d:log_info("two\nlines", { title = "A title", step = 7 })
  local log = redco.data.read(workdir .. "/log.txt")
  assert(log:find("A title (step 7)", 1, true), log)
  assert(log:find("two", 1, true) and log:find("lines", 1, true))
  d:log_metrics({ loss = 0.5, count = 3, bad = 0 / 0, tensor = torch.tensor(1.5) }, 9)
  local line = redco.data.lines(workdir .. "/metrics.jsonl")[1]
  for _, part in ipairs { '"step"', '"loss"', '"bad"', "null", "1.5", "0.5" } do
    assert(line:find(part, 1, true), line)
  end
end)

-- ---- memory ----

local function resident_mb()
  for line in io.lines "/proc/self/status" do
    local kb = line:match "^VmRSS:%s+(%d+) kB"
    if kb then return tonumber(kb) / 1024 end
  end
end

test("1,000 steps with 100,000 examples resident hold the memory flat", function()
  local examples = {}
  for i = 1, 100000 do examples[i] = { x = { i, i + 1, i + 2 }, y = i % 7,
    id = "example " .. i } end
  local generator = { generator = torch.Generator(1) }
  local function epoch(from)
    return function() return { unpack(examples, from, from + 3999) } end
  end
  local trainer = trainer_of { params = nn.MLP({ 3, 256, 7 }, generator),
    collate_fn = function(batch)
      local x, y = {}, {}
      for i, example in ipairs(batch) do x[i], y[i] = example.x, example.y end
      return { x = torch.tensor(x):float() / 1e5, y = torch.tensor(y),
        big = torch.zeros { 250000 } }
    end,
    loss_fn = function(_, _, params, batch)
      local loss, count = nn.cross_entropy(nn.mlp(params, batch.x), batch.y)
      return loss + batch.big:sum(), count
    end,
    optimizer = optim.adamw { learning_rate = 1e-3 } }
  trainer:fit { train_examples = epoch(1), per_device_batch_size = 16, n_epochs = 1 }
  local before = resident_mb()
  local highest = before
  for i = 1, 4 do
    trainer:fit { train_examples = epoch(1 + i * 4000), per_device_batch_size = 16, n_epochs = 1 }
    highest = math.max(highest, resident_mb())
  end
  expect_equal(trainer.step, 1250)
  assert(#examples == 100000)
  assert(highest - before < 30, ("%.1f MB, then %.1f MB"):format(before, highest))
end)

os.execute(("rm -r '%s'"):format(folder))
testing.finish()
