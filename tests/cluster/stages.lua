-- Pipelines: which stage has what, what they send, and what a script cannot do in them. In two or
-- four processes.
local redco = require "redco"
local testing = require "testing"
local torch = require "redco.torch"

local nn, test = redco.nn, testing.test
local n_processes = tonumber(os.getenv "WORLD_SIZE")
local width, n_rows, n_blocks, element = 6, 8, 5, 8

local function randn(generator, shape)
  return torch.randn(shape, { generator = generator, dtype = "float64" })
end

local function new_params()
  local generator, params = torch.Generator(3), { blocks = {} }
  params.first, params.head = randn(generator, { width, width }), randn(generator, { width })
  for i = 1, n_blocks do params.blocks[i] = { weight = randn(generator, { width, width }) / 3 } end
  return params
end

local function rows()
  local generator, examples = torch.Generator(5), {}
  for i = 1, n_rows do examples[i] = randn(generator, { width }) end
  return examples
end

local function collate(examples) return { x = torch.stack(examples) } end

local function block(p, x) return x + torch.tanh(nn.linear(p, x)) end

-- With `inside`, a function of x after each block, and its number.
local function loss_of(params, x, inside)
  x = torch.matmul(x, params.first)
  for i, p in ipairs(params.blocks) do
    x = nn.block(block, p, x)
    if inside then x = inside(x, i) or x end
  end
  return (torch.matmul(x, params.head) ^ 2):mean()
end

local function deployer_of(options)
  options.seed, options.verbose, options.zero_min_size = 1, false, 16
  return redco.Deployer(options)
end

local function trainer_of(deployer, loss_fn, params)
  return redco.Trainer {
    deployer = deployer, params = params or new_params(), compute_dtype = "float64",
    collate_fn = collate, loss_fn = loss_fn, optimizer = redco.optim.sgd { learning_rate = 0.1 },
  }
end

local function fit(trainer, micro)
  trainer:fit { train_examples = rows(), n_epochs = 1, global_batch_size = n_rows,
    per_device_batch_size = micro }
end

test("each stage has its own blocks", function()
  local deployer = deployer_of { n_pipeline_stages = n_processes }
  testing.expect_equal(deployer.mesh.pp, n_processes)
  local trainer = trainer_of(deployer, function(_, _, p, batch) return loss_of(p, batch.x) end)
  fit(trainer, 2)
  local stages, last = {}, 0
  for i, p in ipairs(trainer.params.blocks) do
    stages[i] = tonumber(p.weight:placement().pp:match "on_rank%((%d+)%)")
    assert(stages[i] == last or stages[i] == last + 1, "the blocks are not consecutive")
    last = stages[i]
    testing.expect_equal(p.weight:to_local():size(0),
      stages[i] == deployer.process_id and width or 0)
  end
  testing.expect_equal(last, n_processes - 1)
  testing.expect_equal(trainer.params.first:placement().pp, "on_rank(0)")
  testing.expect_equal(trainer.params.head:placement().pp, ("on_rank(%d)"):format(last))
end)

test("what is sent between stages: activations there, and their gradients back", function()
  local deployer = deployer_of { n_pipeline_stages = n_processes }
  local trainer = trainer_of(deployer, function(_, _, p, batch) return loss_of(p, batch.x) end)
  local function sent()
    local count, bytes = 0, 0
    for _, move in ipairs(redco.sharding_counters().moves) do
      if move.cause == "stage" and move.what == "move" then
        count, bytes = count + move.collectives, bytes + move.bytes
      end
    end
    return count, bytes
  end
  local count_before, bytes_before = sent()
  fit(trainer, 2)
  local count, bytes = sent()
  local id, n_micro = deployer.process_id, n_rows / 2
  local n_sent = (id < n_processes - 1 and 1 or 0) + (id > 0 and 1 or 0)
  local n_received = n_sent  -- as many messages come
  testing.expect_equal(count - count_before, n_micro * (n_sent + n_received))
  testing.expect_equal(bytes - bytes_before, n_rows * width * element * n_sent)
end)

-- oneDNN's LSTM has a kernel of float32 that saves an opaque state.
test("an LSTM on each stage trains as without stages", function()
  local function trained(options)
    local generator, params = torch.Generator(2), {}
    for i = 1, n_processes do params[i] = nn.LSTM(4, 4, { generator = generator }) end
    local deployer = deployer_of(options)
    local trainer = redco.Trainer {
      deployer = deployer, params = params, collate_fn = collate,
      optimizer = redco.optim.sgd { learning_rate = 1 },
      loss_fn = function(_, _, p, batch)
        local x = batch.x
        for _, layer in ipairs(p) do
          x = nn.block(function(q, y) return (nn.lstm(q, y)) end, layer, x)
        end
        return x:square():mean()
      end,
    }
    local examples = {}
    for i = 1, 4 do examples[i] = torch.randn({ 3, 4 }, { generator = torch.Generator(i) }) end
    trainer:fit { train_examples = examples, n_epochs = 2, global_batch_size = 4,
      per_device_batch_size = deployer.mesh.pp > 1 and 2 or 4 / n_processes }
    return redco.tree.map(function(param) return param:full() end, trainer.params)
  end
  local expected = redco.tree.leaves(trained {})
  for i, param in ipairs(redco.tree.leaves(trained { n_pipeline_stages = n_processes })) do
    testing.expect_close(param, expected[i], 1e-5, 1e-6)
  end
end)

if n_processes == 4 then
  test("a whole gradient of a parameter that model shards split stays on its stage", function()
    local deployer = deployer_of { n_pipeline_stages = 2, n_model_shards = 2 }
    local model = redco.models.from_config({ model_type = "llama", vocab_size = 64,
      hidden_size = 32, intermediate_size = 64, num_hidden_layers = 2, num_attention_heads = 4,
      num_key_value_heads = 2 }, { generator = torch.Generator(1) })
    local trainer = redco.Trainer {
      deployer = deployer, params = model.params,
      optimizer = redco.optim.sgd { learning_rate = 0.1 },
      collate_fn = function(examples)
        return { input_ids = torch.ones({ #examples, 8 }, { dtype = "int64" }) }
      end,
      loss_fn = function(_, _, p, batch)
        return (model.loss(p, { input_ids = batch.input_ids, labels = batch.input_ids }))
      end,
    }
    fit(trainer, 2)
    local before = redco.sharding_counters().collectives.pp.all_gather.bytes
    fit(trainer, 2)
    testing.expect_equal(redco.sharding_counters().collectives.pp.all_gather.bytes, before)
  end)
end

test("metrics are those of all processes, and parameters those of one", function()
  local params, losses = new_params(), {}
  local plain = redco.tree.map(torch.clone, params)
  local x = collate(rows()).x
  local expected, gradients = redco.value_and_grad(function(p) return loss_of(p, x) end)(plain)
  local deployer = deployer_of { n_pipeline_stages = n_processes }
  local trainer = trainer_of(deployer, function(_, _, p, batch)
    local loss = loss_of(p, batch.x)
    return loss, nil, { twice = loss * 2 }
  end, params)
  trainer:fit { train_examples = rows(), n_epochs = 1, global_batch_size = n_rows,
    per_device_batch_size = 1, on_step = function(step) losses[#losses + 1] = step.metrics end }
  redco.tree.map(function(param, before, gradient)
    testing.expect_close(param:full(), before - 0.1 * gradient, 1e-12, 1e-12)
  end, trainer.params, plain, gradients)
  for _, metrics in ipairs(losses) do
    testing.expect_close(torch.tensor(metrics.twice), expected * 2, 1e-6, 1e-6)
  end
end)

-- mfu has the operations of process 0, which writes the metrics. Its peak is the same for both.
test("a stage counts the operations of its own blocks", function()
  local folder = assert(arg[1], "expected a folder to write to") .. "/flops"
  local function measured(n_stages, workdir)
    local deployer = deployer_of { n_pipeline_stages = n_stages, workdir = workdir }
    local trainer = trainer_of(deployer, function(_, _, p, batch) return loss_of(p, batch.x) end)
    fit(trainer, 2)
    if deployer.process_id > 0 then return nil end
    local step = redco.data.jsonl(workdir .. "/metrics.jsonl")[1]
    return step.mfu * step.step_seconds, trainer.params.blocks
  end
  local deployer = deployer_of { n_pipeline_stages = n_processes }
  local whole = deployer:alone(function()
    return (measured(1, folder .. deployer.process_id))
  end)[1]
  local own, blocks = measured(n_processes, folder)
  if not own then return end
  local n_own = 0
  for _, p in ipairs(blocks) do
    n_own = n_own + (p.weight:placement().pp == "on_rank(0)" and 1 or 0)
  end
  -- In products of matrices: the first needs no gradient of its input, and the head is a vector.
  local expected = (2 + 3 * n_own) / (2 + 3 * n_blocks)
  testing.expect_close(torch.tensor(own / whole), torch.tensor(expected), 1e-5, 1e-5)
end)

-- An error of the training with `inside`.
local function expect_failure(inside, message)
  local deployer = deployer_of { n_pipeline_stages = n_processes }
  testing.expect_error(function()
    fit(trainer_of(deployer, function(_, _, p, batch) return loss_of(p, batch.x, inside) end), 2)
  end, message)
end

local last = n_blocks

test("a value that one stage has cannot be read in the loss_fn", function()
  expect_failure(function(x, i) if i == last then x:sum():item() end end,
    "a value is read that only stage")
  expect_failure(function(x, i) if i == last then redco.from_stage(x) end end,
    "a value is read that only stage")
  -- Beside a plain tensor, which the pass that decides the stages meets too.
  local shift = torch.ones({ width }, { dtype = "float64" })
  expect_failure(function(x, i) if i == last then x:full():add_(shift) end end,
    "a value is read that only stage")
  local params = new_params()
  local trainer = trainer_of(deployer_of { n_pipeline_stages = n_processes },
    function(_, _, p, batch) return loss_of(p, batch.x) + p.head:full():sum() end, params)
  testing.expect_error(function() fit(trainer, 2) end, "a value is read that only stage")
end)

test("a shape that depends on values", function()
  expect_failure(function(x, i) if i == last then x[x:gt(0)]:sum() end end,
    "the shape of its result depends on values that only stage")
  expect_failure(function(x, i)
    if i == last then x:masked_select(x:gt(0)):narrow(0, 0, 3):sum() end
  end, "The shape of what aten::masked_select returns depends on values: keep the shape")
end)

test("a block of two stages cannot run again", function()
  local deployer = deployer_of { n_pipeline_stages = n_processes }
  local trainer = trainer_of(deployer, function(_, _, p, batch)
    local first
    return loss_of(p, batch.x, function(x, i)
      first = first or x
      return i == last and redco.checkpoint(function(y) return y * first:tanh() end, x) or x
    end)
  end)
  testing.expect_error(function() fit(trainer, 2) end,
    "computes on tensors of two stages of a pipeline, and backward cannot run it again")
end)

test("a tensor that all processes have cannot be written", function()
  local shared = torch.zeros({ 2, width }, { dtype = "float64" })
  expect_failure(function(x, i) if i == last then shared:copy_(x:detach()) end end,
    "to a tensor that all processes have. Make a new tensor")
  -- A view that a stage takes of it has the same memory.
  expect_failure(function(x, i) if i == last then shared:view_as(x):add_(x:detach()) end end,
    "to a tensor that all processes have. Make a new tensor")
end)

local function penalty(gradient) return (gradient ^ 2):mean() end

local function penalty_of_input(p, x)
  x = x:detach():requires_grad_()
  local loss = loss_of(p, x)
  return loss + penalty(torch.autograd.grad({ loss }, { x }, { create_graph = true })[1])
end

-- Loss functions that compute gradients.
local with_gradients = {
  -- of what the block before, and so the stage before, has computed
  blocks = function(p, x)
    return loss_of(p, x, function(y, i)
      local following = p.blocks[i + 1]
      if not following then return nil end
      local function energy(z) return nn.linear(following, z):tanh():sum() end
      return y + redco.grad(energy, { create_graph = true })(y) / 8
    end)
  end,
  -- of parameters of the first stage and the last one
  parameters = function(p, x)
    local first = redco.grad(function(w) return torch.matmul(x, w):tanh():mean() end)(p.first)
    local loss = loss_of(p, x)
    local head = torch.autograd.grad({ loss }, { p.head }, { create_graph = true })[1]
    return loss + penalty(first) + penalty(head)
  end,
  -- of a tensor that all processes have, from the first stage and the last one
  plain = function(p, x)
    local y = x:detach():requires_grad_()
    local energy = torch.matmul(y, p.first):tanh():sum() + torch.matmul(y, p.head):tanh():sum()
    return loss_of(p, x) + penalty(torch.autograd.grad({ energy }, { y },
      { create_graph = true })[1])
  end,
}

-- The parameters after two steps with the loss function, which a train_step_fn calls if `by_hand`.
local function trained_with(deployer, loss, micro, by_hand)
  local trainer = redco.Trainer {
    deployer = deployer, params = new_params(), compute_dtype = "float64", collate_fn = collate,
    loss_fn = function(_, _, p, batch) return loss(p, batch.x) end,
    train_step_fn = by_hand and function(_, _, batch, defaults)
      local _, gradients = defaults.value_and_grad(function(p) return loss(p, batch.x) end)
      defaults.apply_gradients(gradients)
      return {}
    end or nil,
    optimizer = redco.optim.sgd { learning_rate = 0.1 },
  }
  trainer:fit { train_examples = rows(), n_epochs = 2, global_batch_size = n_rows,
    per_device_batch_size = micro }
  return redco.tree.map(function(param) return param:full():detach() end, trainer.params)
end

local function expect_as_on_one(loss, micro, by_hand)
  local deployer = deployer_of { n_pipeline_stages = n_processes }
  local expected = deployer:alone(function()
    return trained_with(deployer_of {}, loss, micro, by_hand)
  end)[1]
  redco.tree.map(function(param, other) testing.expect_close(param, other, 1e-12, 1e-12) end,
    trained_with(deployer, loss, micro, by_hand), expected)
end

test("gradients inside of the loss_fn are those of one process", function()
  for _, loss in pairs(with_gradients) do expect_as_on_one(loss, 2, false) end
end)

test("gradients inside of a train_step_fn's function, also through all stages", function()
  for _, loss in pairs(with_gradients) do expect_as_on_one(loss, n_rows, true) end
  expect_as_on_one(penalty_of_input, n_rows, true)
end)

test("a loss_fn cannot compute gradients through several stages", function()
  local deployer = deployer_of { n_pipeline_stages = n_processes }
  testing.expect_error(function() trained_with(deployer, penalty_of_input, 2) end,
    ("TanhBackward0, aten::tanh_backward on stage %d of n_pipeline_stages = %d reads a tensor of "
      .. "stage"):format(n_processes - 1, n_processes))
  testing.expect_error(function()
    trained_with(deployer, function(p, x)
      (p.head ^ 2):sum():backward()
      return loss_of(p, x)
    end, 2)
  end, "by Tensor:backward")
end)

test("fewer blocks than stages, and a number that does not divide", function()
  local deployer = deployer_of { n_pipeline_stages = n_processes }
  testing.expect_error(function()
    fit(trainer_of(deployer, function(_, _, p, batch)
      return (nn.block(block, p.blocks[1], batch.x) ^ 2):mean()
    end), 2)
  end, ("n_pipeline_stages = %d: the function has 1 block (redco.nn.block)"):format(n_processes))
  testing.expect_error(function() deployer_of { n_pipeline_stages = 3 } end,
    ("n_pipeline_stages = 3 must divide %d"):format(n_processes))
end)

test("values can be read in a pred_fn", function()
  local deployer = deployer_of { n_pipeline_stages = n_processes }
  local params, seen = new_params(), nil
  local expected = loss_of(params, collate(rows()).x)
  local predictor = redco.Predictor {
    deployer = deployer, collate_fn = collate,
    pred_fn = function(_, p, batch)
      local loss = loss_of(p, batch.x)
      seen = loss:item()
      testing.expect_equal(redco.from_stage(loss):item(), seen)
      return loss:expand { n_rows }
    end,
  }
  local preds = predictor:predict { examples = rows(), params = params,
    per_device_batch_size = n_rows }
  testing.expect_close(preds[1], expected, 1e-12, 1e-12)
  testing.expect_close(torch.tensor(seen, { dtype = "float64" }), expected, 1e-12, 1e-12)
end)

testing.finish()
