--- redco.Rng
local rng = redco.Rng(42)
local first = torch.rand({ 2, 3 }, { generator = rng })
local second = torch.rand({ 2, 3 }, { generator = rng })
print(first:equal(second))  --> false
local again = torch.rand({ 2, 3 }, { generator = redco.Rng(42) })
print(again:equal(first))  --> true

--- redco.checkpoint
local params = nn.MLP { 64, 256, 64 }
local function block(x) return x + nn.mlp(params, x) end
local x = torch.randn({ 32, 64 }, { requires_grad = true })
redco.checkpoint(block, redco.checkpoint(block, x)):sum():backward()
print(x.grad.shape)  --> torch.Size([32, 64])

--- redco.evaluate
local found, samples = redco.evaluate {
  deployer = redco.Deployer { seed = 42, verbose = false },
  model = redco.models.from_pretrained "gpt2",
  tokenizer = redco.Tokenizer.from_pretrained "gpt2",
  tasks = { {
    task = "sums", data = "qa.jsonl", num_fewshot = 1,
    output_type = "multiple_choice", doc_to_text = "{{q}}",
    doc_to_choice = { "2", "4" }, doc_to_target = "{{a // 2 - 1}}",
  } },
}
local scores = found.results.sums
print(scores["acc,none"], scores["acc_stderr,none"])  --> 0.5  0.5
print(samples.sums[1].arguments[1][1]:gsub("\n", "|"))
--> 1 + 1? 2||2 + 2?  2

--- redco.from_stage
local deployer = redco.Deployer { seed = 42, n_pipeline_stages = 1 }
local predictor = redco.Predictor {
  deployer = deployer,
  collate_fn = function(examples) return { x = torch.stack(examples) } end,
  pred_fn = function(_, params, batch)
    local y = redco.from_stage(nn.block(nn.linear, params, batch.x))
    return y:argmax(-1)  -- on all stages
  end,
}
local preds = predictor:predict { examples = { torch.ones(3) },
  params = nn.Linear(3, 1), per_device_batch_size = 1 }
print(preds[1])  --> tensor(0)

--- redco.gather_micro_batches
local trainer = redco.Trainer {
  deployer = redco.Deployer { seed = 42 }, params = nn.Linear(4, 2),
  collate_fn = function(examples) return { x = torch.stack(examples) } end,
  loss_fn = function(_, _, params, batch)
    local y = redco.gather_micro_batches(nn.linear(params, batch.x))
    return y:matmul(y:t()):logsumexp({ 1 }):mean()
  end,
  optimizer = redco.optim.sgd { learning_rate = 0.1 },
}
trainer:fit {
  train_examples = torch.randn { 8, 4 }, n_epochs = 1,
  per_device_batch_size = 4, global_batch_size = 8,
}
print(trainer.step)  --> 1

--- redco.grad
local function loss(params, x) return (params.w * x):square():sum() end
local params = { w = torch.tensor { 1.5, -2 } }
print(redco.grad(loss)(params, 3).w)  --> tensor([ 27., -36.])

--- redco.options
-- config.toml: learning_rate = 2e-3
local o = redco.options { learning_rate = 1e-3, n_epochs = 3, zero = 0 }
print(o.learning_rate, o.n_epochs)  --> 0.002  3
-- `redco-lua train.lua --n_epochs=5` prints 0.002  5.

--- redco.ordered_table
local call = redco.ordered_table {
  { "name", "get_weather" }, { "arguments", { city = "Paris" } },
}
for key, value in pairs(call) do print(key, type(value)) end
--> name       string
--> arguments  table

--- redco.parameter
local weight = redco.parameter { 10, 64 }
nn.init.xavier_uniform_(weight, { generator = redco.Rng(42) })
print(weight.shape, weight.dtype)
--> torch.Size([10, 64])  float32

--- redco.script_folder
-- The data are in the folder of the script.
local captions = redco.data.lines(redco.script_folder() .. "captions.txt")

--- redco.serve
local model = redco.models.from_pretrained "gpt2"
local tokenizer = redco.Tokenizer.from_pretrained "chat"
local server = redco.serve(model, model.params, tokenizer,
  { port = 0, name = "tiny" })  -- port 0: any that is free
print(server.name)    --> tiny
print(server:poll())  --> 0
server:close()

--- redco.shard
local deployer = redco.Deployer { seed = 42 }
local x = redco.shard(torch.zeros { 8, 64 }, { dp = 0 })
print(x.shape)             --> torch.Size([8, 64])
print(x:to_local().shape)  --> torch.Size([8, 64])
-- With `redco-lua --nproc 2`, each process has a part: torch.Size([4, 64]).

--- redco.sharding_counters
local deployer = redco.Deployer { seed = 42 }
-- Here the run trains.
local counters = redco.sharding_counters()
for _, move in ipairs(counters.moves) do print(move.what, move.bytes) end

--- redco.value_and_grad
local function loss_fn(params, x, y)
  local error = nn.linear(params, x) - y
  return error:square():mean(), error
end
local params = { weight = torch.ones { 1, 2 }, bias = torch.zeros(1) }
local x, y = torch.ones { 1, 2 }, torch.ones { 1, 1 }
local loss, grads, error = redco.value_and_grad(loss_fn)(params, x, y)
print(loss, grads.weight)  --> tensor(1.)  tensor([[2., 2.]])
print(error)               --> tensor([[1.]])

--- redco.vmap
local function loss(params, x) return (params.w * x):sum() ^ 2 end
local params = { w = torch.tensor { 1.5, 2.5 } }
local xs = torch.eye(2)
local per_example = redco.vmap(redco.grad(loss), { in_dims = { false, 0 } })
print(per_example(params, xs).w)
--> tensor([[3., 0.],
-->         [0., 5.]])

--- redco.with_rng
local function noisy(x) return torch.dropout(x, 0.5, true) end
local a = redco.with_rng(redco.Rng(42), noisy, torch.ones(100))
local b = redco.with_rng(redco.Rng(42), noisy, torch.ones(100))
print(a:equal(b))  --> true
