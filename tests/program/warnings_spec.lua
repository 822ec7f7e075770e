-- Warnings about scripts that run, but not as their authors mean.
local program = require "program"
local testing = require "testing"

local test, expect_equal = testing.test, testing.expect_equal

local head = 'local redco = require "redco"\nlocal torch = redco.torch\n'

-- Runs a script of this text, which must end well; returns what it wrote on standard error.
local function run(code)
  local exit_code, _, err = program.run { program.write("script.lua", head .. code) }
  if exit_code ~= 0 then error(err, 2) end
  return err
end

-- Runs such scripts in one process; returns what each wrote on standard error.
local function run_in_turn(codes)
  local paths, errors = {}, {}
  for i, code in ipairs(codes) do
    paths[i] = program.write(("script_%d.lua"):format(i), head .. code)
  end
  for i, found in ipairs(program.run_in_turn(paths)) do
    if not found.is_good then error(found.err, 2) end
    errors[i] = found.err
  end
  return errors
end

test("a comparison of a tensor with a number is found in the text", function()
  local err = run [[
local x = torch.ones(3)
if x == 1 then print(x) end
print(x[0] ~= -2)
print(x:sum() == 2)
print(torch.sum(x) == 2)
local y = x:view { 3 } * 2
print(y == true)]]
  program.expect_has(err, "script.lua:4: `== 1` is false for every tensor: x:eq(1)",
    "script.lua:5: `~= -2` is true for every tensor: x:ne(-2)",
    "script.lua:6:", "script.lua:7:", "script.lua:9:")
  expect_equal(select(2, err:gsub("warning: ", "")), 5)
end)

test("other comparisons have no warning", function()
  expect_equal(run [[
local x, n = torch.ones(3), 3
print(#x == 3, x:size(0) == 3, x:sum():item() == 3, x.shape[1] == 3, x:dim() == 1, n == 3)
local y = x:tolist()
print(y[1] == 1, "x == 1", torch.equal(x, x) == true) -- x == 1
local function f(x) return x == 1 end
for x = 1, 2 do print(x == 1, f(x)) end
]], "")
end)

local model = [[
local model = redco.models.from_config({ model_type = "gpt2", n_positions = 8, n_embd = 8,
  n_layer = 1, n_head = 1, vocab_size = 9, bos_token_id = 0, eos_token_id = 0 })
local ids = torch.tensor { { 1, 2, 3, 4 }, { 5, 6, 7, 8 } }
local labels = ids:clone()
labels[{ 0, { 0, 2 } }] = -100
]]

test("labels that equal the inputs have one warning, and shifted ones none", function()
  local in_loss, in_training, in_masked_model, shifted = unpack(run_in_turn {
    model .. [[
for _ = 1, 2 do model.loss(model.params, { input_ids = ids, labels = labels }) end]],
    model .. [[
local deployer = redco.Deployer { seed = 1, verbose = false }
local trainer = redco.Trainer { deployer = deployer, params = model.params,
  loss_fn = model.loss_fn, optimizer = redco.optim.sgd { learning_rate = 0.1 },
  collate_fn = function() return { input_ids = ids, labels = ids } end }
trainer:fit { train_examples = { 1, 2, 3, 4 }, per_device_batch_size = 2, n_epochs = 1 }]],
    [[
local model = redco.models.from_config({ model_type = "bert", vocab_size = 9, hidden_size = 8,
  num_hidden_layers = 1, num_attention_heads = 1, intermediate_size = 8,
  max_position_embeddings = 8 }, { task = "masked_lm" })
local ids = torch.tensor { { 1, 2, 3, 4 } }
model.loss(model.params, { input_ids = ids, labels = ids })
local masked = ids:clone()
masked[{ 0, 1 }] = 8
model.loss(model.params, { input_ids = masked, labels = ids:masked_fill(masked:eq(ids), -100) })]],
    model .. [[
model.loss(model.params, { input_ids = ids, labels = labels }, { shift = true })
labels[{ 1, 0 }] = 1
model.loss(model.params, { input_ids = ids, labels = labels })]],
  })
  program.expect_has(in_loss, "warning: the labels equal input_ids", "shift = true")
  expect_equal(select(2, in_loss:gsub("warning", "")), 1)
  expect_equal(select(2, in_training:gsub("the labels equal input_ids", "")), 1)
  program.expect_has(in_masked_model, "warning: the labels equal input_ids",
    "set other labels to -100")
  expect_equal(select(2, in_masked_model:gsub("warning", "")), 1)
  expect_equal(shifted, "")
end)

program.remove_folder()
testing.finish()
