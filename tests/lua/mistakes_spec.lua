-- The errors that a user gets after the mistakes of the first hour.
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
  -- Those of another layer, of a model and of none.
  local model = { hidden = nn.Linear(2, 2), out = nn.Linear(2, 2) }
  expect_mistake(function() nn.linear(model, x) end,
    "the table of parameters that nn.Linear returns, got table {hidden = {...}, out = {...}}")
  expect_mistake(function() nn.conv2d({}, x) end, "nn.conv2d: the first argument")
  expect_mistake(function() nn.layer_norm(nn.MLP { 2, 2 }, x) end, "nn.layer_norm: the first")
  expect_mistake(function() nn.mlp({ 2, 4, 2 }, x) end,
    "nn.mlp: the first argument", "that nn.MLP returns, got table {2, 4, 2}")
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
  text = message_of(start .. "local model = { config = {} }\nmodel.forward(x)")
  assert(text:find("(a nil value); a model of redco.models is called itself", 1, true), text)
  text = message_of(start .. "print(x < 2)")
  assert(text:find("attempt to compare userdata with number; compare tensors with x:lt(y)", 1,
    true), text)
end)

-- Each line and a part of the advice that is given on it.
test("syntax of other languages", function()
  for line, advice in pairs {
    ["import redco"] = 'local redco = require "redco"',
    ["from redco import torch"] = 'local redco = require "redco"',
    ["def f(x): return x"] = "local function f(x) ... end",
    ["class Net(nn.Module):"] = "Lua has no classes",
    ["with torch.no_grad():"] = "torch.no_grad(function() ... end)",
    ["local x = 1\n# a comment"] = "a comment begins with --",
    ["local f = lambda x: x + 1"] = "function(x) return x + 1 end",
    ["if x != 2 then print(x) end"] = "is written ~=",
    ["if !x then print(x) end"] = "is written: not x",
    ["if x == 1 && y then end"] = "`and` and `or`",
    ["if x == 1 then y()\nelif x == 2 then y() end"] = "elseif ... then",
    ["if x = 2 then print(x) end"] = "is written ==",
    ["while x: "] = "while x do ... end",
    ["x += 1"] = "write x = x + 1",
    ["x++"] = "write x = x + 1",
    ["print(x ** 2)"] = "x ^ 2",
    ["print(a @ b)"] = "a:matmul(b)",
    ["print(x[2:5])"] = "x[{ { 2, 5 } }]",
    ["print(x[0, 1])"] = "x[{ 0, 1 }]",
    ["x = torch.tensor([1, 2])"] = "{ 1, 2, 3 }",
    ["x = torch.ones({ 2 }, dtype=torch.float32)"] = "f(x, { name = value })",
    ['x = f { "seed" = 1 }'] = "name = value",
    ["x = f { seed: 1 }"] = "name = value",
    ['x = f { seed = 1 workdir = "x" }'] = "is a comma missing before it?",
    ["function f(x) { return x }"] = "ends with `end`",
  } do
    local text = message_of(line .. "\n")
    assert(text:find(advice, 1, true), line .. "\n" .. text)
  end
  local text = message_of "local x = 1\nprint('x += 1' x)\n"
  assert(not text:find("x + 1", 1, true), text)
end)

test("names of other languages, and misspelt ones", function()
  local start = "local redco = require 'redco'\nlocal trainer = redco\n"
  for code, advice in pairs {
    ["quit()"] = ":q or Ctrl-D ends the prompt",
    ["print(None)"] = "nil is the word",
    ["print(len(redco))"] = "#x is the length",
    ['print(f"{x}")'] = ":format(x)",
    ["torch.ones { 2 }"] = "redco.torch",
    ["print(trainr)"] = "undeclared global 'trainr' is read; did you mean 'trainer'?",
    ["local function g() return trainr end\nlocal h = trainer\ng()"] = "is read",
    ["pirnt(1)"] = "did you mean 'print'?",
    ["print(something_else)"] = "declare it with `local`",
    ["require 'torch'"] = "not found; write: local torch = require(\"redco\").torch\n",
  } do
    local text = message_of(start .. code)
    assert(text:find(advice, 1, true), code .. "\n" .. text)
  end
end)

test("names of other libraries", function()
  expect_mistake(function() return torch.nn end, "torch has no 'nn'; layers are in redco.nn")
  expect_mistake(function() return torch.optim end, "optimizers are in redco.optim")
  expect_mistake(function() return torch.ones({ 2 }):astype "float32" end, 'x:to "float32"')
  expect_mistake(function() return nn.Sequential end, "nn.MLP with nn.mlp")
  expect_mistake(function() return nn.relu end, "torch.relu(x)")
  expect_mistake(function() return redco.data.DataLoader end, "Trainer:fit makes batches")
  expect_mistake(function() return optim.AdamW end, "did you mean 'adamw'?")
  expect_mistake(function() return torch.onse end, "did you mean 'ones'?")
end)

test("Python's loops, comparisons and formats", function()
  local start = "local redco = require 'redco'\nlocal x = redco.torch.ones { 2 }\n"
  for code, advice in pairs {
    ["for y in x do print(y) end"] = "for i = 0, #x - 1 with x[i]",
    ["for y in { 1 } do print(y) end"] = "for i, x in ipairs(list)",
    ["for i, y in pairs(x) do print(y) end"] = "loops are written",
    ["print(redco.nn.Linear(2, 2)(x))"] = "a table value; a table is not a function",
    ["for i, l in ipairs { { redco.nn.Linear(2, 2) } } do l[1](x) end"] = "nn.linear(params, x)",
    ["local f = redco.optim.sgd { learning_rate = 1 }\nprint(({ f })[1](x))"] =
      "given to redco.Trainer",
    ["print(x(1))"] = "an element or row of a tensor is x[i]",
    ["local model = { params = {} }\nmodel:eval()"] = "models have no mode",
    ["local model = { params = {} }\nprint(model:parameters())"] = "redco.tree.leaves(model.par",
    ["local model = { params = {} }\nmodel:to 'cuda'"] = "a Trainer and a Predictor move",
    ["local batch = { input_ids = x }\nbatch:word_ids()"] = "return_offsets_mapping = true",
    ["local list = { x }\nprint(list[0]:sum())"] = "lists count from 1",
    ["print((x == x):float())"] = "x:eq(y) compares the elements",
    ["print(('%.3f'):format(x))"] = "x:item() is the number",
    ["redco.Deployer:new {}"] = "a function is called",
    ["local trainer = { step = 1 }\ntrainer:step()"] =
      "it is the number of steps done: trainer:train_step {",
    ["local list = { size = 1 }\nlist:size()"] = "it is a field: write it with a dot",
    ["setmetatable(_G, nil)\nprint(len(x))"] = "(a nil value); #x is the length of a list",
  } do
    local text = message_of(start .. code)
    assert(text:find(advice, 1, true), code .. "\n" .. text)
  end
end)

test("methods of tensors are called with a colon", function()
  local x = torch.ones { 2 }
  for _, name in ipairs { "size", "item", "dim", "tolist" } do
    expect_mistake(function() x[name]() end,
      ("Tensor:%s: expected a Tensor, got nothing"):format(name),
      ("a method is called with a colon: tensor:%s(...)"):format(name))
  end
  expect_mistake(function() x.size(0) end, "Tensor:size: expected a Tensor, got number 0")
end)

test("names of which only a part is known, and those that are like no other", function()
  expect_mistake(function() return optim.cosine end, "did you mean 'cosine_schedule'?")
  for name, wrong in pairs { foo = "fix", a = "T" } do
    local message = expect_mistake(function() return torch.ones({ 2 })[name] end, name)
    assert(not message:find("did you mean '" .. wrong .. "'", 1, true), message)
  end
  -- The time to find the nearest one grows with the length.
  local long = ("x"):rep(1e5)
  local message = expect_mistake(function() return torch[long] end, "torch has no 'xxx")
  assert(not message:find "did you mean", message:sub(-100))
end)

test("an allocation that fails tells how much in GiB, and what to do", function()
  expect_mistake(function() torch.zeros { 2 ^ 44 } end, "out of memory", "65536.0 GiB",
    "per_device_batch_size", "redco-lua plan")
end)

test("modules are called with a dot", function()
  expect_mistake(function() torch:ones { 2 } end, "torch.ones is called with a dot")
  expect_mistake(function() nn:linear(nn.Linear(2, 2), torch.ones { 1, 2 }) end,
    "nn.linear is called with a dot")
end)

test("indices and classes that are too large", function()
  expect_mistake(function() nn.cross_entropy(torch.ones { 2, 3 }, torch.tensor { 1, 3 }) end,
    "Target 3 is out of bounds. Classes count from 0")
  expect_mistake(function() nn.embedding(nn.Embedding(4, 2), torch.tensor { 4 }) end,
    "not less than the rows of the first tensor")
  expect_mistake(function() torch.ones({ 2 }, { dtype = "int64" }):mean() end, "x:float()")
  expect_mistake(function() torch.randn({ 2 }, { generator = 42 }) end, "torch.Generator(42)")
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

test("arguments of a model's functions", function()
  local model, ids = tiny(), torch.tensor { { 1, 2 } }
  expect_mistake(function() model.loss(torch.Generator(1), nil, model.params, {}) end,
    "model.loss: the first argument is the parameters, model.params, got Generator; a Trainer "
    .. "takes model.loss_fn")
  expect_mistake(function() model.loss(model.params, { input_ids = ids }) end,
    "model.loss: inputs.labels is missing")
  expect_mistake(function() model.generate(model.params, ids) end,
    "inputs is a table such as { input_ids = ids }, got Tensor int64[1, 2]")
  expect_mistake(function() redco.models.generate(model, model.params, ids) end,
    "models.generate: inputs is a table such as { input_ids = ids }, got Tensor int64[1, 2]")
  expect_mistake(function() model.generate(model.params, { input_ids = ids[0] }) end,
    "inputs.input_ids: expected [batch, length], got Tensor int64[2]; ids:unsqueeze(0)")
  expect_mistake(function() model(model.params, { input_ids = { { 1, 2 } } }) end,
    "inputs.input_ids: expected a Tensor, got table {{...}}; torch.tensor makes one")
  expect_mistake(function() model.loss(model.params, { input_ids = ids, labels = { 1 } }) end,
    "model.loss: inputs.labels: expected a Tensor, got table {1}")
  expect_mistake(function() model(model.params, { 1, 2 }) end,
    "inputs is a table such as { input_ids = ids }, got table {1, 2}")
  expect_mistake(function()
    redco.Trainer { deployer = regression.deployer { seed = 7 }, params = model,
      collate_fn = function() end, loss_fn = model.loss_fn, optimizer = optim.sgd {
        learning_rate = 1 } }
  end, "expected the parameters of a model, model.params, got the model")
end)

-- Writes a file and returns its path.
local function file_of(text)
  local path = os.tmpname()
  local file = assert(io.open(path, "wb"))
  file:write(text)
  file:close()
  return path
end

test("files that are something else", function()
  local data = redco.data
  local path = file_of "a,b\n1,2\n"
  expect_mistake(function() data.loadtxt(path) end, ":1: 'a' is not a number; redco.data.csv reads")
  os.remove(path)
  for text, advice in pairs { ["[\n{}\n]\n"] = "redco.data.json reads",
    ["\31\139\8\n"] = "compressed with gzip" } do
    path = file_of(text)
    expect_mistake(function() return data.jsonl(path)[1] end, ":1: ", advice)
    os.remove(path)
  end
  path = file_of '{"a": 1}\n'
  expect_mistake(function() return data.jsonl(path)[0] end, "they count from 1")
  os.remove(path)
  path = file_of "version https://git-lfs.github.com/spec/v1\n"
  os.rename(path, path .. ".safetensors")
  expect_mistake(function() torch.load(path .. ".safetensors") end, "git lfs pull")
  os.remove(path .. ".safetensors")
end)

test("a model that is larger than the memory: the sizes that were not given", function()
  expect_mistake(function()
    redco.models.from_config { model_type = "llama", vocab_size = 10, num_hidden_layers = 10000 }
  end, "new parameters need", "GB are free; the configuration does not give hidden_size = 4096, "
    .. "intermediate_size = 11008")
end)

test("names of the Hub", function()
  expect_mistake(function() redco.models.from_pretrained "google/flan-t5-small" end,
    "there is no file or folder google/flan-t5-small here", "download = true")
  local message = expect_mistake(function() redco.models.from_pretrained "/nowhere" end,
    "there is no /nowhere/config.json")
  assert(not message:find "Hub", message)
  expect_mistake(function() redco.Tokenizer.from_pretrained "google/flan-t5-small" end,
    "there is no file or folder google/flan-t5-small here", "download = true")
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
  expect_mistake(function() collate { torch.ones { 2 }, torch.ones { 3 } } end,
    "default_collate: example 2 has shape [3], but shape [2] in example 1")
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
