-- collate = "local": each process collates its own examples, and the numbers are those of the
-- default, where each collates all; batches that do not fit together are errors.
local redco = require "redco"
local testing = require "testing"

local nn, torch, tree = redco.nn, redco.torch, redco.tree
local test, expect_close, expect_equal, expect_error =
  testing.test, testing.expect_close, testing.expect_equal, testing.expect_error

local n_in, n_out, micro = 6, 3, 8
local generator = torch.Generator(3)
local initial = tree.map(function(leaf) return leaf:double() end,
  nn.MLP({ n_in, 16, n_out }, { generator = generator }))
local class_weights = torch.tensor({ 1, 2, 0.5 }, { dtype = "float64" })

local function examples_of(n)
  local rng, examples = torch.Generator(4), {}
  for i = 1, n do
    examples[i] = {
      number = i, name = ("example %d"):format(i),
      x = torch.randn({ n_in }, { generator = rng, dtype = "float64" }),
      label = torch.randint(n_out, {}, { generator = rng }),
    }
  end
  return examples
end

local function collate(examples)
  local x, labels, names = {}, {}, {}
  for i, example in ipairs(examples) do
    x[i], labels[i], names[i] = example.x, example.label, example.name
  end
  return {
    x = torch.stack(x), nested = { labels = torch.stack(labels) }, names = names,
    class_weights = class_weights, temperature = torch.tensor(0.5), power = 2,
  }
end

local function loss_fn(_, _, params, batch, is_training)
  local x = torch.dropout(batch.x, 0.3, is_training)
  local logits = nn.mlp(params, x) * batch.class_weights / batch.temperature
  return nn.cross_entropy(logits, batch.nested.labels) ^ batch.power
end

local function pred_fn(_, params, batch) return nn.mlp(params, batch.x) end

local function trainer_of(deployer, how, collate_fn)
  return redco.Trainer {
    deployer = deployer, params = initial, collate_fn = collate_fn or collate, collate = how,
    loss_fn = loss_fn, optimizer = redco.optim.adamw { learning_rate = 0.01 },
    compute_dtype = "float64",
  }
end

for _, n_model_shards in ipairs { 1, 2 } do
  local dp, deployer
  local function new_deployer()
    deployer = redco.Deployer { seed = 1, n_model_shards = n_model_shards, verbose = false }
    dp = deployer.mesh.dp
    return deployer
  end
  new_deployer()
  local layout = (" on %dx%d"):format(dp, deployer.mesh.mp)

  --- The numbers of a batch's examples, first .. first + n - 1, of which this process keeps the
  --- rows by default.
  local function own_numbers(first, n)
    local numbers = torch.arange(first, first + n)
    return redco.shard(numbers, { dp = 0 }):to_local():tolist()
  end

  -- The last batch of an epoch: whole; uneven; smaller than the ranks.
  for _, n_examples in ipairs { 16, 13, 9 } do
    test(("the numbers of the default, %d examples"):format(n_examples) .. layout, function()
      local examples, results = examples_of(n_examples), {}
      for _, how in ipairs { "global", "local" } do
        local trainer = trainer_of(new_deployer(), how)
        trainer:fit {
          train_examples = examples, n_epochs = 2, global_batch_size = micro,
          per_device_batch_size = micro / dp / 2, eval_examples = examples,
        }
        expect_equal(trainer.step, 4)
        local predictor = trainer:get_default_predictor { pred_fn = pred_fn }
        results[how] = {
          params = trainer.params,
          loss = trainer:eval_loss { examples = examples, per_device_batch_size = micro / dp },
          predictions = torch.stack(predictor:predict {
            examples = examples, per_device_batch_size = micro / dp, params = trainer.params,
          }),
        }
      end
      local default, own = results.global, results["local"]
      assert(math.abs(default.loss - own.loss) < 1e-12, ("%.17g, not %.17g"):format(own.loss,
        default.loss))
      expect_close(own.predictions, default.predictions, 1e-12, 1e-12)
      local params = tree.leaves(own.params)
      for i, param in ipairs(tree.leaves(default.params)) do
        expect_close(params[i]:full(), param:full(), 1e-10, 1e-12)
      end
    end)
  end

  test("a process collates its own examples" .. layout, function()
    local seen = {}
    local trainer = trainer_of(new_deployer(), "local", function(examples)
      for _, example in ipairs(examples) do seen[#seen + 1] = example.number end
      return collate(examples)
    end)
    --- The examples that this process collates for an evaluation of `n`.
    local function seen_of(n)
      seen = {}
      trainer:eval_loss { examples = examples_of(n), per_device_batch_size = micro / dp }
      return table.concat(seen, " ")
    end
    trainer:setup_running_step { examples = examples_of(1), per_device_batch_size = 1 }
    local of_many, of_one = seen_of(21), seen_of(1)
    local expected = {}
    for _, batch in ipairs { { 1, 8 }, { 9, 8 }, { 17, 5 } } do
      for _, number in ipairs(own_numbers(unpack(batch))) do expected[#expected + 1] = number end
    end
    expect_equal(of_many, table.concat(expected, " "))
    -- Who has none of it looks at the first one, to know what a batch is.
    expect_equal(of_one, "1")
  end)

  -- `change(batch, is_other)` spoils the batch of the processes with or without the first example.
  local function expect_misfit(change, ...)
    local trainer = trainer_of(new_deployer(), "local", function(examples)
      local batch = collate(examples)
      change(batch, examples[1].number > 1)
      return batch
    end)
    local examples = examples_of(8)
    trainer:setup_running_step { examples = examples, per_device_batch_size = 1 }
    return expect_error(function()
      trainer:eval_loss { examples = examples, per_device_batch_size = micro / dp }
    end, 'collate = "local"', ...)
  end

  if dp > 1 then
    local other = (" on process %d"):format(n_model_shards)

    test("shapes that differ" .. layout, function()
      expect_misfit(function(batch, is_other)
        if is_other then batch.x = torch.constant_pad_nd(batch.x, { 0, 2 }) end
      end, "'x' of the batch is Double [examples, 6] on process 0",
        " and Double [examples, 8]" .. other, "pad to a fixed length", 'collate = "global"')
    end)

    test("types that differ" .. layout, function()
      expect_misfit(function(batch, is_other)
        if is_other then batch.nested.labels = batch.nested.labels:int() end
      end, "'nested.labels' of the batch is Long [examples] on process 0",
        " and Int [examples]" .. other)
    end)

    test("a tensor that only some have" .. layout, function()
      expect_misfit(function(batch, is_other)
        if not is_other then batch.mask = torch.ones_like(batch.x) end
      end, "'mask' of the batch is Double [examples, 6] on process 0 and missing" .. other)
    end)

    test("numbers and whole tensors that differ" .. layout, function()
      expect_misfit(function(batch, is_other) batch.power = is_other and 2 or 3 end,
        "'power' of the batch is the integer 3 on process 0 and the integer 2" .. other)
      expect_misfit(function(batch, is_other)
        if is_other then batch.class_weights = batch.class_weights * 2 end
      end, "'class_weights' of the batch is Double [3] with checksum", other,
        "the same on all processes")
    end)
  end

  test("a function that changes its batch does not change the script's data" .. layout, function()
    for _, how in ipairs { "global", "local" } do
      local data = torch.ones { micro, n_in }
      local function views(examples)
        local rows = data:narrow(0, 0, #examples)
        return { x = rows, again = rows, whole = data[0] }
      end
      local function changed(_, params, batch)
        batch.x:add_(1)
        batch.whole:mul_(3)
        return (batch.x * 100 + batch.again * 10 + batch.whole) * params.w
      end
      local trainer = redco.Trainer {
        deployer = new_deployer(), params = { w = torch.ones { n_in } }, collate_fn = views,
        collate = how, optimizer = redco.optim.sgd { learning_rate = 0.5 },
        loss_fn = function(rng, _, params, batch) return changed(rng, params, batch):mean() end,
      }
      local examples = examples_of(micro)
      trainer:train { examples = examples, per_device_batch_size = micro / dp }
      local loss = trainer:eval_loss { examples = examples, per_device_batch_size = micro / dp }
      expect_close(torch.tensor(loss), torch.tensor(213 * (1 - 0.5 * 213 / n_in)), 1e-4)
      local predictor = redco.Predictor { deployer = deployer, collate_fn = views,
        collate = how, pred_fn = changed }
      local predictions = predictor:predict { params = { w = torch.ones { n_in } },
        examples = examples, per_device_batch_size = micro / dp }
      for _, prediction in ipairs(predictions) do
        expect_close(prediction, torch.full({ n_in }, 213))
      end
      expect_close(data, torch.ones { micro, n_in }, 0, 0)
    end
  end)

  test("another word is refused" .. layout, function()
    expect_error(function() trainer_of(deployer, "locale") end, "redco.Trainer", '"locale"',
      '"global"', '"local"')
    expect_error(function()
      redco.Predictor { deployer = deployer, collate_fn = collate, pred_fn = pred_fn,
        collate = "locale" }
    end, "redco.Predictor", '"locale"')
  end)
end

testing.finish()
