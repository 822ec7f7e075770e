-- Every family of models, and adapters on some, trained on its reference case by processes that
-- share the model, the batches, or both: the losses, gradients and parameters are those of one
-- process, and no operator gathers what it is given. Bounds as in tests/lua/models_spec.lua. All
-- families share a model; some share the batches too, or only these.
local cases = require "model_cases"
local redco = require "redco"
local testing = require "testing"
local traffic = require "traffic"

local torch = redco.torch
local n_processes = redco.Deployer { seed = 1, verbose = false }.n_processes

--- An example is a row of a batch.
local function rows_of(inputs)
  local rows = {}
  for i = 0, select(2, next(inputs)):size(0) - 1 do
    rows[i + 1] = redco.tree.map(function(tensor) return tensor[i] end, inputs)
  end
  return rows
end

local function collate(rows)
  local batch = {}
  for key in pairs(rows[1]) do
    local tensors = {}
    for i, row in ipairs(rows) do tensors[i] = row[key] end
    batch[key] = torch.stack(tensors)
  end
  return batch
end

local function expect_no_gather()
  for operator, calls in pairs(traffic.gathered_without_rule()) do
    error(("%s was gathered %d times"):format(operator, calls))
  end
end

--- Checks that merged adapters, and those written and read again, compute what sharded ones do.
local function check_adapters(case, model, params)
  local folder = assert(arg[1], "expected a folder to write to") .. "/adapters"
  redco.lora.save_pretrained(folder, params)
  local batch = cases.training_inputs(case, "batch1")
  torch.no_grad(function()
    local loss = model.loss(params, batch):item()
    local function expect_same(what, given)
      cases.expect_near("the loss of what was " .. what, model.loss(given, batch):item(), loss,
        1e-5)
    end
    expect_same("merged", redco.lora.merge(params))
    expect_same("read", redco.lora.from_pretrained(folder, model.params))
  end)
end

--- Batch i of the case is what step i is trained on.
local function train(deployer, case)
  local model, adamw = redco.models.from_pretrained(case.base and case.base.dir or case.dir),
    case.expected.training.adamw
  local optimizer = redco.optim.adamw {
    learning_rate = adamw.lr, betas = adamw.betas, eps = adamw.eps,
    weight_decay = adamw.weight_decay,
  }
  local params = model.params
  if case.base then
    params = redco.lora.from_pretrained(case.dir, params)
    optimizer = redco.lora.freeze_base(optimizer)
  end
  local function trained(given) return case.base and cases.adapters(given) or given end
  local function loss_fn(given, batch) return (cases.loss(model, given, batch)) end
  local losses = {}
  local trainer = redco.Trainer {
    deployer = deployer, params = params, optimizer = optimizer, collate_fn = collate,
    loss_fn = function(_, _, given, batch) return loss_fn(given, batch) end,
    train_step_fn = function(_, _, batch, defaults)
      local loss, gradients = defaults.value_and_grad(function(given)
        return loss_fn(given, batch)
      end)
      if #losses == 0 then cases.expect_gradients(case, trained(gradients)) end
      losses[#losses + 1] = loss:item()
      return { loss = loss, norm = defaults.apply_gradients(gradients) }
    end,
  }
  for step = 0, adamw.steps - 1 do
    local rows = rows_of(cases.training_inputs(case, "batch" .. step,
      not cases.predicts_next(model)))
    trainer:train {
      examples = rows, per_device_batch_size = math.ceil(#rows / deployer.mesh.dp),
    }
  end
  cases.expect_trained(case, losses, trained(trainer.params))
  if case.base then check_adapters(case, model, trainer.params) end
  local memory, n_trained = trainer:memory(), 0
  for name, param in pairs(trained(trainer.params)) do
    if not redco.nn.is_running_statistic(name) then n_trained = n_trained + param:numel() end
  end
  testing.expect_equal(memory.grads.whole, 4 * n_trained)
  testing.expect_equal(memory.opt_state.whole, 8 * n_trained + 4)  -- and the step
  return trainer.params
end

-- What ZeRO may split. Tiny models have many parameters that are smaller.
local zero_min_size = 64

local function share_here(params)
  local here, whole = 0, 0
  for _, param in pairs(params) do
    if redco.torch.is_tensor(param) and param:numel() >= zero_min_size then
      here, whole = here + param:to_local():numel(), whole + param:numel()
    end
  end
  return here / whole
end

local function test(folder, name, n_model_shards, zero)
  local deployer = redco.Deployer {
    seed = 1, n_model_shards = n_model_shards, zero = zero, zero_min_size = zero_min_size,
    verbose = false,
  }
  local mesh = deployer.mesh
  local layout = ("%dx%d, zero = %d"):format(mesh.dp, mesh.mp, zero)
  testing.test(("%s/%s on %s"):format(folder, name, layout), function()
    local params = train(deployer, cases.open(folder, name))
    expect_no_gather()
    -- Norms, some biases and small layers stay whole.
    local share = share_here(params)
    assert(share < 0.56, ("%.3f of the parameters are here"):format(share))
  end)
end

-- The searches read the same sharded scores: one of them is enough here.
local function searches(name) return testing.is_full or name == "beam4_eos_lp1" end

-- The tokens that one process writes, by a Predictor that lays out the parameters itself.
local function test_generation(folder, name, n_model_shards)
  local case = cases.open(folder, name)
  if not case.expected.generation then return end
  local deployer = redco.Deployer { seed = 1, n_model_shards = n_model_shards, verbose = false }
  local mesh = deployer.mesh
  local model, inputs = redco.models.from_pretrained(case.dir), cases.prompts(case)
  model.generation_config = {}
  local rows = rows_of(inputs)
  for _, expected in ipairs(case.expected.generation.cases) do
    local function body()
      local predictor = redco.Predictor {
        deployer = deployer, collate_fn = collate,
        pred_fn = function(_, params, batch)
          local sequences = model.generate(params, batch, expected.kwargs)
          local n = expected.kwargs.num_return_sequences or 1
          return sequences:view { sequences:size(0) / n, n, sequences:size(1) }
        end,
      }
      local preds = predictor:predict {
        examples = rows, params = model.params,
        per_device_batch_size = math.ceil(#rows / mesh.dp),
      }
      local all = {}
      for _, pred in ipairs(preds) do
        for _, row in ipairs(pred:tolist()) do all[#all + 1] = table.concat(row, " ") end
      end
      testing.expect_equal(#all, #expected.sequences)
      for i, row in ipairs(expected.sequences) do
        testing.expect_equal(all[i], table.concat(row, " "))
      end
    end
    if searches(expected.name) then
      local layout = ("%dx%d"):format(mesh.dp, mesh.mp)
      testing.test(("%s/%s: %s on %s"):format(folder, name, expected.name, layout), body)
    end
  end
end

for _, folder in ipairs(cases.folders) do
  local names = cases.found(folder, cases.names)
  for i, name in ipairs(redco.tree.leaves { names, cases.found(folder, cases.lora_names) }) do
    if n_processes == 2 then
      test(folder, name, 2, 0)
      if testing.is_chosen(i, 3) then test(folder, name, 1, 3) end
    elseif testing.is_chosen(i, 5) then
      test(folder, name, 2, 0)
    end
  end
  for i, name in ipairs(names) do
    if testing.is_chosen(i, n_processes == 2 and 2 or 5) then test_generation(folder, name, 2) end
  end
end

testing.finish()
