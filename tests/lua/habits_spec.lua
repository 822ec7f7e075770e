-- The errors that a user gets who writes what PyTorch, JAX or transformers would take.
local redco = require "redco"
local regression = require "regression"
local testing = require "testing"

local torch, nn, optim = redco.torch, redco.nn, redco.optim
local test, expect_error = testing.test, testing.expect_error

-- Fails unless f raises an error with all of the texts, at a line of this file.
local function expect_mistake(f, ...)
  local message = expect_error(f, ...)
  assert(message:find "^habits_spec.lua:%d+: ", message)
  return message
end

test("something else in the place of an optimizer", function()
  for _, given in ipairs { { lr = 1 }, "adam", optim.adam } do
    expect_mistake(function() regression.trainer_of { optimizer = given } end,
      "redco.Trainer: optimizer: expected an Optimizer, such as redco.optim.adamw {")
  end
  expect_mistake(function() optim.chain { 1 } end, "chain: entry 1: expected an Optimizer, such as")
  for _, f in ipairs {
    function() optim.adamw({ w = torch.ones { 2 } }, { learning_rate = 1 }) end,
    function() optim.adamw { { w = torch.ones { 2 } }, learning_rate = 1 } end,
  } do
    expect_mistake(f, "redco.optim.adamw: expected only a table of named arguments",
      "the parameters are given to redco.Trainer")
  end
end)

test("arguments that other libraries name otherwise", function()
  local trainer = regression.trainer_of {}
  for name, advice in pairs {
    batch_size = "per_device_batch_size is the number of examples that a process computes at once, "
      .. "global_batch_size that of all processes",
    num_epochs = "it is called n_epochs", train_dataset = "train_examples is a list or a data set",
    val_data = "eval_examples is a list",
    callbacks = "on_step, on_eval", compute_metrics = "eval_metric_fn(examples, predictions)",
  } do
    expect_mistake(function()
      trainer:fit { train_examples = { 1 }, n_epochs = 1, per_device_batch_size = 1, [name] = 1 }
    end, ("Trainer:fit: there is no argument '%s'; %s"):format(name, advice))
  end
  expect_mistake(function() redco.Deployer { seed = 1, n_gpus = 1 } end, "redco-lua --nproc 2")
  expect_mistake(function() redco.Trainer { learning_rate = 1 } end, "the optimizer has it")
  expect_mistake(function() optim.adamw { params = {} } end, "are given to redco.Trainer")
  expect_mistake(function() trainer:fit({ 1, 2 }, 1) end,
    "Trainer:fit: the arguments are named, Trainer:fit{name = value, ...}; got an entry at")
end)

test("functions that return functions", function()
  local x = torch.ones { 2 }
  local function f(p) return p:sum() end
  for name, given in pairs { grad = x, value_and_grad = { w = x }, vmap = x } do
    expect_mistake(function() redco[name](f, given) end,
      ("redco.%s: expected options after the function, got a "):format(name),
      ("redco.%s(f) returns a function: redco.%s(f)(...) calls it"):format(name, name))
  end
  expect_mistake(function() redco.tree.map({ x }, f) end,
    "tree.map: expected a function and then trees, tree.map(f, tree), got table {Tensor")
end)

test("what loss_fn and collate_fn return", function()
  local function fit(options)
    regression.trainer_of(options):fit { train_examples = regression.examples_of(2), n_epochs = 1,
      per_device_batch_size = 2 }
  end
  local function sum(params, f)
    return f(redco.tree.leaves(params)[1])
  end
  for advice, f in pairs {
    ["got nil; does it lack a `return`?"] = function() end,
    ["; loss:mean() has one"] = function(w) return torch.ones { 2 } * w:sum() end,
    ["after loss:item() there are no gradients"] = function(w) return w:sum():item() end,
  } do
    expect_mistake(function()
      fit { loss_fn = function(_, _, params) return sum(params, f) end }
    end, "loss_fn: expected a tensor of one element to be returned, got ", advice)
  end
  expect_mistake(function() fit { collate_fn = function() end } end,
    "collate_fn: expected a table of tensors to be returned, got nil; does it lack a `return`?")
  expect_mistake(function() regression.trainer_of { params = { w = torch.tensor { 1, 2 } } } end,
    "nothing to train", "'w' has the type Long")
end)

test("parameters of loss_fn, pred_fn and train_step_fn in another order", function()
  local order = "write function(rng, state, params, batch, is_training)"
  for given, f in pairs {
    ["argument 1 is rng, but the function names it params"] = function(params, batch) end,
    ["argument 2 is state, but the function names it params"] = function(rng, params, batch) end,
    ["argument 3 is params, but the function names it batch"] = function(_, _, batch, params) end,
    ["argument 4 is batch, but the function names it train_rng"] = function(
      params_, batch_, _, train_rng, is_training) end,
  } do
    expect_mistake(function() regression.trainer_of { loss_fn = f } end,
      "redco.Trainer: loss_fn: its " .. given .. ": " .. order)
  end
  local trainer = regression.trainer_of {}
  expect_mistake(function()
    trainer:get_default_predictor { pred_fn = function(params, batch) end }
  end, "pred_fn: its argument 1 is rng, but the function names it params: write function(rng, ")
  expect_mistake(function()
    regression.trainer_of { train_step_fn = function(rng, batch, state) end }
  end, "train_step_fn: its argument 2 is state, but the function names it batch")
  -- Other names are free, a state may be one of something else, and C functions have no names.
  for _, f in ipairs { function(_, _, p, state) end, function(train_rng, s, params, x, train) end,
    function(...) end, function() end, function(key, state, weights, batch, is_training, more) end,
    math.max } do
    regression.trainer_of { loss_fn = f }
  end
end)

test("dimensions of permute", function()
  local message = expect_mistake(function() local _ = torch.ones({ 2, 3 }):permute(1) end,
    "Tensor:permute: number of dimensions", "each dimension is named once: x:permute(0, 2, 1)")
  assert(not message:find("sparse", 1, true), message)
end)

test("nil, tables and missing arguments of operators", function()
  local x, ids = torch.ones { 2, 3 }, torch.tensor { 0, 1 }
  expect_mistake(function() return x + nil end, "argument 2 is nil: is a name misspelt?")
  expect_mistake(function() return x + { 1 } end, "argument 2 is a table: torch.tensor makes a")
  expect_mistake(function() torch.softmax(x) end, "(Tensor float32[2, 3]); 'dim' is missing")
  expect_mistake(function() x:sum { axis = 0 } end, "no argument 'axis': it is called dim")
  expect_mistake(function() nn.cross_entropy(x, torch.ones { 2 }) end, "x:long() makes whole")
  expect_mistake(function() nn.embedding(nn.Embedding(2, 2), torch.ones { 2 }) end, "x:long()")
  expect_mistake(function() nn.linear(nn.Linear(3, 2), x:double()) end, 'x:to "float32" converts')
  expect_mistake(function() torch.log_softmax(ids, 0) end, "x:float() makes numbers")
  expect_mistake(function() torch.ones({ 2 }, { requires_grad = true }):add_(1) end,
    "torch.no_grad(function() ... end)")
  expect_mistake(function() x:to "mps" end, 'a device ("cpu", "cuda", "cuda:1")')
end)

test("names of types, devices and data sets of other libraries", function()
  for name, advice in pairs { FloatTensor = "torch.tensor(list, { dtype = ", device = '"cuda"' } do
    expect_mistake(function() return torch[name] end, "torch has no '" .. name .. "'; ", advice)
  end
  expect_mistake(function() return torch.ones({ 2 })[":,0"] end, "the column 0 is x[{ {}, 0 }]")
  expect_mistake(function() return redco.data.load_dataset end, "redco.data.jsonl")
  expect_mistake(function() redco.models.from_config { model_type = "gtp2" } end,
    "unknown model_type 'gtp2', did you mean 'gpt2'?")
  expect_mistake(function() redco.models.from_config { model_type = "starcoder3" } end,
    "unknown model_type 'starcoder3', did you mean 'starcoder2'?",
    "config = { model_type = 'starcoder2' }")
end)

testing.finish()
