-- What a user reads after the mistakes of the first hour.
local redco = require "redco"
local regression = require "regression"
local testing = require "testing"

local torch, nn, optim = redco.torch, redco.nn, redco.optim
local test, expect_equal, expect_error = testing.test, testing.expect_equal, testing.expect_error

-- Fails unless f raises an error with all of the texts, at a line of this file.
local function expect_mistake(f, ...)
  local message = expect_error(f, ...)
  assert(message:find "^mistakes_spec.lua:%d+: ", message)
  return message
end

test("an unknown argument is reported before a missing one", function()
  expect_mistake(function() optim.adamw { lr = 0.1 } end,
    "redco.optim.adamw: there is no argument 'lr'; did you mean 'learning_rate'?",
    "the arguments are: betas, eps, learning_rate, mask, weight_decay")
  expect_mistake(function() redco.Deployer { sed = 1 } end,
    "redco.Deployer: there is no argument 'sed'; did you mean 'seed'?")
  expect_mistake(function() optim.sgd {} end,
    "redco.optim.sgd: the argument 'learning_rate' is missing")
  expect_mistake(function() redco.Trainer { deployr = 1 } end,
    "redco.Trainer: there is no argument 'deployr'; did you mean 'deployer'?")
  expect_mistake(function() redco.Trainer {} end,
    "redco.Trainer: the argument 'deployer' is missing")
  local trainer = regression.trainer_of {}
  expect_mistake(function() trainer:fit { train_example = {}, n_epochs = 1 } end,
    "Trainer:fit: there is no argument 'train_example'; did you mean 'train_examples'?")
  expect_mistake(function() trainer:fit { n_epochs = 1 } end,
    "Trainer:fit: the argument 'train_examples' is missing")
end)

test("refused arguments are not offered", function()
  local message = expect_mistake(function() redco.Deployer { seed = 1, wandb = {} } end,
    "there is no argument 'wandb'")
  assert(not message:find("wandb_init_kwargs", 1, true), message)
  assert(not message:find("jax_seed", 1, true), message)
  expect_mistake(function() redco.Deployer { seed = 1, jax_seed = 1 } end,
    "redco.Deployer: jax_seed: it is called seed here")
end)

test("a GPU that is not there", function()
  local device = io.open "/dev/nvidiactl"
  if device then return device:close() end
  for _, f in ipairs {
    function() redco.Deployer { seed = 1, device = "cuda" } end,
    function() torch.ones({ 2 }, { device = "cuda" }) end,
    function() torch.ones({ 2 }):cuda() end,
  } do
    expect_mistake(f, "device \"cuda\"", "no NVIDIA GPU, or no driver for it")
  end
end)

test("a misspelt dtype", function()
  local expected = '"flot32" is not a dtype; did you mean "float32"?'
  expect_mistake(function() torch.ones({ 2 }, { dtype = "flot32" }) end,
    "torch.ones: dtype = " .. expected)
  expect_mistake(function() torch.ones({ 2 }, { device = "gpu" }) end,
    'torch.ones: device = "gpu" is not one of "cpu"')
  expect_mistake(function() torch.zeros { 2 }:to "flot32" end, "Tensor:to", expected)
  expect_mistake(function()
    regression.trainer_of {}:fit { train_examples = { 1 }, n_epochs = 1, per_device_batch_size = 1,
      save_float_dtype = "flot32" }
  end, "Trainer:fit: save_float_dtype: " .. expected)
end)

test("nil and tables in the place of a tensor", function()
  local w = torch.ones { 2, 2 }
  expect_mistake(function() torch.linear(nil, w) end,
    "the first argument is nil: is a name misspelt?")
  expect_mistake(function() torch.linear({ 1, 2 }, w) end,
    "is a table: torch.tensor makes a tensor")
end)

test("layers without their parameters, and called as functions", function()
  local x = torch.ones { 2, 2 }
  for lower, upper in pairs { linear = "Linear", mlp = "MLP", layer_norm = "LayerNorm",
    rms_norm = "RMSNorm", embedding = "Embedding", conv2d = "Conv2d", gru_cell = "GRUCell",
    lstm_cell = "LSTMCell", multihead_attention = "MultiheadAttention" } do
    expect_mistake(function() nn[lower](nil, x) end, ("nn.%s: the first argument is the table of "
      .. "parameters that nn.%s returns, got nil"):format(lower, upper))
    expect_mistake(function() nn[lower](x) end, "got Tensor float32")
  end
end)

-- Runs a script in another process: advice is added where the error leaves the script.
local function message_of(script)
  local path = os.tmpname()
  local file = assert(io.open(path, "w"))
  file:write(script)
  file:close()
  local pipe = assert(io.popen(("'%s' %s 2>&1"):format(os.getenv "REDCO_LUA", path)))
  local text = pipe:read "*a"
  pipe:close()
  os.remove(path)
  return text
end

test("Lua's own errors about tables and tensors have advice", function()
  local start = "local redco = require 'redco'\nlocal x = redco.torch.ones { 2 }\n"
  local text = message_of(start .. "local layer = redco.nn.Linear(2, 2)\nlayer(x)")
  assert(text:find("attempt to call local 'layer' (a table value); a table is not a function", 1,
    true) and text:find("nn.linear(params, x)", 1, true), text)
  text = message_of(start .. "redco.torch.Tensor { 1 }")
  assert(text:find("(a table value); torch.tensor makes a tensor", 1, true), text)
  text = message_of(start .. "print(x < 2)")
  assert(text:find("attempt to compare userdata with number; compare tensors with x:lt(y)", 1,
    true), text)
end)

test("unknown names of modules are errors", function()
  expect_mistake(function() return nn.Liner end, "redco.nn has no 'Liner'; did you mean 'Linear'?")
  expect_mistake(function() return nn.init.xavier_norml_ end, "redco.nn.init has no")
  expect_mistake(function() return redco.model end, "redco has no 'model'; did you mean 'models'?")
  expect_mistake(function() return redco.metrics.acuracy end, "did you mean 'accuracy'?")
  expect_mistake(function() return optim.adamww end,
    "redco.optim has no 'adamww'; did you mean 'adamw'?")
  expect_mistake(function() return redco.lora.LoRA end, "redco.lora has no 'LoRA'; it has add, ")
  expect_mistake(function() return redco.data.nothing_like_it_at_all end,
    "redco.data has no 'nothing_like_it_at_all'")
end)

local function tiny() return redco.models.from_config { model_type = "gpt2", vocab_size = 10,
  n_positions = 8, n_embd = 8, n_layer = 1, n_head = 2 } end

test("functions of a model are called with a dot", function()
  local model = tiny()
  local inputs = { input_ids = torch.tensor { { 1, 2 } } }
  for _, name in ipairs { "generate", "loss", "hidden_states", "loss_fn" } do
    expect_mistake(function() model[name](model, model.params, inputs) end,
      ("model.%s is called with a dot, not a colon: model.%s(...)"):format(name, name))
  end
  expect_mistake(function() model:save_pretrained "nowhere" end, "model.save_pretrained is called")
end)

test("a model that is larger than the memory: the sizes that were not given", function()
  expect_mistake(function()
    redco.models.from_config { model_type = "llama", vocab_size = 10, num_hidden_layers = 10000 }
  end, "new parameters need", "GB are free; the configuration does not give hidden_size = 4096, "
    .. "intermediate_size = 11008")
end)

test("names of the Hub", function()
  expect_mistake(function() redco.models.from_pretrained "google/flan-t5-small" end,
    "there is no google/flan-t5-small/config.json; models of the Hub are not downloaded",
    "hf download google/flan-t5-small --local-dir google/flan-t5-small")
  local message = expect_mistake(function() redco.models.from_pretrained "/nowhere" end,
    "there is no /nowhere/config.json")
  assert(not message:find "Hub", message)
  expect_mistake(function() redco.Tokenizer.from_pretrained "google/flan-t5-small" end,
    "there is no google/flan-t5-small", "tokenizers of the Hub are not downloaded")
end)

test("adapters: no addresses of tables in messages", function()
  local params = tiny().params
  local function expect_refused(options, ...)
    local message = expect_mistake(function() redco.lora.add(params, options) end, ...)
    assert(not message:find "0x", message)
  end
  expect_refused({ target_modules = { { "c_attn" } } }, "target_modules", "a table in the list")
  expect_refused({ target_modules = { "c_attn" }, r = {} }, "r: expected a positive integer")
  expect_refused({ target_modules = { "c_attn" }, lora_dropout = {} }, "lora_dropout", "a table")
  expect_mistake(function() redco.lora.add(tiny(), { target_modules = { "c_attn" } }) end,
    "expected the parameters of a model, model.params, got the model")
end)

test("ragged examples", function()
  local collate = redco.data.default_collate
  expect_mistake(function() collate { { x = torch.ones { 2 } }, { x = torch.ones { 3 } } } end,
    "examples.x of example 2 has shape [3], but shape [2] in example 1; write a collate_fn that "
    .. "pads them")
  expect_mistake(function() collate { { x = 1 }, { y = 2 } } end, "examples.x: example 2 has none")
  expect_mistake(function() collate { { x = { 1, 2 } }, { x = { 1, 2, 3 } } } end,
    "examples.x.3: example 1 has none, but example 2 has")
  expect_mistake(function() collate { { x = { 1 } }, { x = 1 } } end,
    "examples.x of example 2 is a number, but a table in example 1")
end)

test("tensors that are no list", function()
  local x = torch.ones { 2 }
  for _, name in ipairs { "cat", "stack" } do
    expect_mistake(function() torch[name](x, x) end,
      ("the tensors are in a list: torch.%s({a, b})"):format(name))
  end
end)

test("objects print their state", function()
  expect_equal(tostring(regression.deployer { seed = 7 }),
    "Deployer {seed = 7, n_processes = 1, device = \"cpu\"}")
  expect_equal(tostring(optim.sgd { learning_rate = 0.1 }):match "^Optimizer {sgd, [^,]*",
    "Optimizer {sgd, learning_rate = 0.1")
  local chain = tostring(optim.chain { optim.clip_by_global_norm(1),
    optim.adamw { learning_rate = function() return 1 end, betas = { 0.8, 0.9 } } })
  assert(chain:find("Optimizer {chain, {clip_by_global_norm, 1}, {adamw, learning_rate = a "
    .. "schedule, betas = {0.8, 0.9}", 1, true), chain)
  expect_equal(tostring(regression.trainer_of {}), "Trainer {step = 0}")
  local tokenizer = redco.Tokenizer.from_pretrained(os.getenv "REDCO_SOURCE" .. "/tests/cases/gpt2")
  assert(tostring(tokenizer):find "^Tokenizer {vocab_size = %d+}$", tostring(tokenizer))
end)

testing.finish()
