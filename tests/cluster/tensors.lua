-- Sharded tensors as a script sees them; every process runs it, with two model shards.
local redco = require "redco"
local testing = require "testing"

local torch = redco.torch
local test, expect_close, expect_equal, expect_error =
  testing.test, testing.expect_close, testing.expect_equal, testing.expect_error

local whole = torch.arange(24, { dtype = "float32" }):view { 4, 6 }

test("without a Deployer there is nothing to lay out over", function()
  expect_error(function() redco.shard(whole, { mp = 0 }) end, "redco.shard", "redco.Deployer")
  expect_error(redco.sharding_counters, "redco.Deployer")
end)

local deployer = redco.Deployer { seed = 1, n_model_shards = 2, verbose = false }
local rank = deployer.process_id % 2
local half = whole:narrow(1, rank * 3, 3)
local halves = redco.shard(whole, { mp = 1 })

--- Bytes and numbers of all collectives so far.
local function traffic()
  local text = {}
  for _, group in ipairs { "dp", "mp" } do
    local kinds = redco.sharding_counters().collectives[group]
    for _, kind in ipairs { "all_reduce", "all_gather", "reduce_scatter", "all_to_all" } do
      text[#text + 1] = kinds[kind].count .. ":" .. kinds[kind].bytes
    end
  end
  return table.concat(text, " ")
end

test("each process keeps its part, and the tensor counts as the whole", function()
  expect_equal(halves:is_sharded(), true)
  expect_equal(halves:placement().mp, "shard(1)")
  expect_equal(halves:placement().dp, "replicate")
  expect_equal(tostring(halves.shape), "torch.Size([4, 6])")
  expect_equal(halves:size(1), 6)
  expect_equal(halves:numel(), 24)
  expect_equal(#halves, 4)
  expect_equal(halves.dtype, "float32")
  expect_equal(halves.device, "cpu")
  expect_close(halves:to_local(), half)
  expect_close(halves:full(), whole)
  expect_equal(halves:full():is_sharded(), false)
end)

test("a loop with pairs communicates in the same order on all processes", function()
  local tensors, found = {}, {}
  for i = 1, 32 do tensors["layer" .. i] = redco.shard(torch.full({ 2, 4 }, i), { mp = 1 }) end
  for name, tensor in pairs(tensors) do found[name] = tensor:sum():item() end
  for i = 1, 32 do expect_equal(found["layer" .. i], 8 * i) end
end)

test("placements: dimensions from the end, blocks, sums and whole tensors", function()
  expect_equal(redco.shard(whole, { mp = -1 }):placement().mp, "shard(1)")
  local blocks = redco.shard(whole, { mp = { dim = -1, block = 2 } })
  expect_equal(blocks:placement().mp, "shard(1, block = 2)")
  expect_close(blocks:to_local(), whole:index_select(1, torch.tensor { rank, 2 + rank, 4 + rank }))
  expect_close(blocks:full(), whole)
  local sum = redco.shard(whole, { dp = "replicate", mp = "partial" })
  expect_equal(sum:placement().mp, "partial(sum)")
  expect_close(sum:full(), whole)
  expect_equal(redco.shard(whole, {}):placement().mp, "replicate")
  local moved = redco.shard(halves, { mp = 0 })
  expect_close(moved:to_local(), whole:narrow(0, rank * 2, 2))
end)

test("what cannot be a placement is an error that says so", function()
  expect_error(function() redco.shard(whole, { mp = 2 }) end, "placement.mp", "no dimension 2")
  expect_error(function() redco.shard(whole, { mp = -3 }) end, "no dimension -3")
  expect_error(function() redco.shard(whole, { mp = "split" }) end, "placement.mp", '"split"')
  expect_error(function() redco.shard(whole, { tp = 0 }) end, "'tp'", "dp, dp_replicate, ep, mp")
  expect_error(function() redco.shard(whole, { mp = { dim = 1, block = 4 } }) end, "multiple of 4")
  expect_error(function() redco.shard(whole) end, "redco.shard: placement")
end)

test("a plain tensor answers the same questions", function()
  expect_equal(whole:is_sharded(), false)
  expect_equal(whole:placement().dp, "replicate")
  expect_equal(whole:full(), whole)
  expect_equal(whole:to_local(), whole)
end)

test("shard and full give memory of their own, in every placement", function()
  local function copies(x)
    return { redco.shard(x, {}), redco.shard(x, { dp = 0 }), redco.shard(x, { mp = 1 }),
      redco.shard(x, { dp = 0, mp = 1 }), redco.shard(x, { mp = 0 }), x:full(),
      x:expand { 4, 6 }:full(), redco.shard(x:t(), { mp = 1 }):t() }
  end
  for _, given in ipairs { whole:clone(), redco.shard(whole, {}), halves * 1,
    redco.shard(whole, { dp = 0 }), redco.shard(whole, { dp = 0, mp = 1 }),
    redco.shard(whole, { mp = "partial" }) } do
    local leaf = given:double():detach():requires_grad_()
    local before = leaf:detach():full()
    local x = leaf * 1
    local made = copies(x)
    for _, copy in ipairs(made) do
      copy:mul_(3)
      expect_close(x:detach():full(), before)
      expect_close(copy:detach():full(), 3 * before)
    end
    -- Each copy's write is in its own gradient alone.
    local gradient = torch.autograd.grad(x:sum(), { leaf })[1]
    expect_close(gradient:full(), torch.ones_like(before))
    gradient = torch.autograd.grad(made[4]:sum() + made[6]:sum(), { leaf })[1]
    expect_close(gradient:full(), torch.full({ 4, 6 }, 6, { dtype = "float64" }))
    -- And the tensor's writes are not in the copies.
    torch.no_grad(function() x:fill_(-1) end)
    for _, copy in ipairs(made) do expect_close(copy:detach():full(), 3 * before) end
  end
end)

test("gradients flow through shard, full and to_local", function()
  local x = whole:clone():requires_grad_()
  local doubled = redco.shard(x, { mp = 1 }) * 2
  doubled:full():pow(2):sum():backward()
  expect_close(x.grad:full(), whole * 8)
  x.grad = nil
  local part = redco.shard(x, { mp = 1 }):to_local()
  part:sum():backward()
  expect_close(x.grad:full(), torch.ones_like(whole))
end)

test("printing shows this process' part, and asks no other process", function()
  local recorded = (halves * 1):requires_grad_()
  local before = traffic()
  if deployer.process_id == 0 then
    local text = tostring(halves)
    expect_equal(text, [==[
ShardedTensor(size=(4, 6), dp=replicate, mp=shard(1), part=
    tensor([[ 0.,  1.,  2.],
            [ 6.,  7.,  8.],
            [12., 13., 14.],
            [18., 19., 20.]])
)]==])
    assert(tostring(redco.shard(whole, { mp = "partial" })):find("mp=partial(sum)", 1, true))
    assert(tostring(recorded):find("requires_grad=True", 1, true))
  end
  expect_equal(traffic(), before)
end)

test("a number is whole: one process may read it", function()
  local sum = halves:sum()
  if deployer.process_id == 0 then expect_equal(sum:item(), 276) end
  if deployer.process_id == 0 then expect_equal(sum:tolist(), 276) end
end)

test("what reads elements refuses parts instead of waiting for the others", function()
  if deployer.process_id ~= 0 then return end
  expect_error(function() halves:tolist() end, "Tensor:tolist", "mp = shard(1)", ":full()",
    ":to_local()")
  expect_error(function() halves:data_ptr() end, "Tensor:data_ptr", ":to_local()")
  expect_equal(halves:to_local():data_ptr()[0], 0)
  expect_equal(redco.shard(whole, {}):data_ptr()[23], 23)
  expect_equal(redco.shard(whole, {}):tolist()[4][6], 23)
end)

test("indexing gives sharded tensors of what a plain one gives", function()
  expect_close(halves[1]:full(), whole[1])
  expect_close(halves[-1]:full(), whole[-1])
  expect_close(halves[{ {}, 4 }]:full(), whole[{ {}, 4 }])
  expect_close(halves[{ { 1, 3 }, { 0, 6, 2 } }]:full(), whole[{ { 1, 3 }, { 0, 6, 2 } }])
  expect_close(halves[torch.tensor { 2, 0 }]:full(), whole[torch.tensor { 2, 0 }])
  expect_close(halves[{ "...", 5 }]:full(), whole[{ "...", 5 }])
  expect_close(halves[whole:gt(7)]:full(), whole[whole:gt(7)])
  local rows = 0
  for i = 0, #halves - 1 do rows = rows + halves[i]:sum():item() end
  expect_equal(rows, 276)
end)

test("assignment writes to the parts", function()
  local expected, own = whole:clone(), redco.shard(whole:clone(), { mp = 1 })
  for _, t in ipairs { expected, own } do
    t[1] = 5
    t[{ { 2, 4 } }] = -1
    t[torch.tensor { 0 }] = 9
    -- A column of a tensor that is split by columns is gathered, and written back.
    t[{ {}, 4 }] = 1
  end
  expect_close(own:full(), expected)
end)

test("comparison is one of values, by all processes", function()
  expect_equal(halves == redco.shard(whole, { mp = 0 }), true)
  expect_equal(halves == whole, true)
  expect_equal(halves == whole + 1, false)
end)

test("trees of sharded tensors are walked, counted and saved whole", function()
  local tree = { a = halves, list = { redco.shard(whole, { mp = 0 }), whole }, n = 3 }
  expect_equal(redco.tree.count(tree), 72)
  local doubled = redco.tree.map(function(leaf) return leaf * 2 end, tree)
  expect_close(doubled.a:full(), whole * 2)
  local path = arg[1] .. "/tree.safetensors"
  torch.save(doubled, path)
  local loaded = torch.load(path)
  expect_equal(loaded.a:is_sharded(), false)
  expect_close(loaded.a, whole * 2)
  expect_close(loaded.list[1], whole * 2)
  expect_equal(loaded.n, 6)
end)

test("weights are saved by the first process, and loaded in parts", function()
  local native = require "redco.native"
  local folder = arg[1] .. "/weights"
  local large = torch.arange(128 * 64, { dtype = "float32" }):view { 128, 64 }
  native.save_weights(folder, { a = halves, b = redco.shard(large, { dp = 0, mp = 0 }), c = whole },
    { max_shard_size = 200 })
  local weights = native.open_weights(folder)
  expect_close(weights:tensor "a", whole)
  local part = redco.parameter({ 128, 64 }, { dtype = "float64" })
  expect_equal(part:is_sharded(), true)
  local before = traffic()
  part:copy_(weights:tensor "b")
  expect_equal(traffic(), before)
  expect_close(part:full(), large:to "float64")
  -- Every process learns of what only the first one meets.
  expect_error(function() native.save_weights("/proc/none", { a = halves }) end, "/proc/none")
end)

test("a TorchScript module takes sharded parameters", function()
  local module = torch.jit.load(os.getenv "REDCO_SOURCE" .. "/tests/lua/script_module.pt")
  local weight = module.params["linear.weight"]
  local x = torch.arange(2 * weight:size(1), { dtype = "float32" }):view { 2, -1 } / 10
  local leaves = {}
  for i, tensor in ipairs { weight, redco.shard(weight, { mp = 0 }) } do
    leaves[i] = tensor:detach():requires_grad_()
    module({ ["linear.weight"] = leaves[i] }, x):square():sum():backward()
  end
  expect_close(leaves[2].grad:full(), leaves[1].grad)
  local y = module({ ["linear.weight"] = leaves[2] }, x)
  expect_equal(y:is_sharded(), true)
  expect_close(y:full(), (module(nil, x)))
end)

test("errors of operators name the placement", function()
  expect_error(function() return halves:matmul(halves) end, "float32[4, 6]", "mp = shard(1)")
end)

test("rules are proposed, can be changed and are followed", function()
  local params = redco.nn.MLP({ 6, 8, 4 }, { generator = torch.Generator(2) })
  local rules = deployer:get_sharding_rules(params, function(p) return redco.nn.mlp(p, whole) end)
  expect_equal(rules[2][1], "1.weight")
  expect_equal(rules[2][2], 0)
  expect_equal(rules[4][2], 1)
  assert(#rules[4].reason > 0)
  assert(tostring(rules):find("on each device", 1, true))
  rules[4][2] = "replicate"
  local trainer = redco.Trainer {
    deployer = deployer, params = params, params_sharding_rules = rules,
    collate_fn = function(examples) return { x = torch.stack(examples) } end,
    loss_fn = function(_, _, p, batch) return redco.nn.mlp(p, batch.x):pow(2):mean() end,
    optimizer = redco.optim.sgd { learning_rate = 0.1 },
  }
  trainer:setup_running_step { examples = { whole[0], whole[1] }, per_device_batch_size = 2 }
  expect_equal(trainer.params[1].weight:placement().mp, "shard(0)")
  expect_equal(trainer.params[2].weight:placement().mp, "replicate")
  expect_close(trainer.params[1].weight:full(), params[1].weight)
end)

test("a model is made in parts, of the values that one process would make", function()
  for _, make_generator in ipairs { torch.Generator, redco.Rng } do
    local function generator() return make_generator(9) end
    local params = redco.nn.MLP({ 70, 130, 70 }, { generator = generator() })
    local values, rng = {}, generator()
    for i, sizes in ipairs { { 70, 130 }, { 130, 70 } } do
      local n_in, n_out = unpack(sizes)
      local bound = 1 / math.sqrt(n_in)
      values[i] = {
        weight = torch.empty { n_out, n_in }:uniform_(-bound, bound, { generator = rng }),
        bias = torch.empty { n_out }:uniform_(-bound, bound, { generator = rng }),
      }
    end
    for i, layer in ipairs(params) do
      local part = layer.weight:to_local():numel() / layer.weight:numel()
      assert(math.abs(part - 1 / deployer.n_processes) < 0.02, part)
      expect_equal(layer.bias:is_sharded(), false)  -- too small to be worth it
      expect_close(layer.weight:full(), values[i].weight, 0, 0)
      expect_close(layer.bias, values[i].bias, 0, 0)
    end

    local function trained(initial)
      local trainer = redco.Trainer {
        deployer = deployer, params = initial,
        collate_fn = function(examples) return { x = torch.stack(examples) } end,
        loss_fn = function(_, _, p, batch) return redco.nn.mlp(p, batch.x):pow(2):mean() end,
        optimizer = redco.optim.sgd { learning_rate = 0.1 },
      }
      local examples = { torch.ones { 70 }, torch.ones { 70 } / 2 }
      trainer:train { examples = examples, per_device_batch_size = 2 / deployer.mesh.dp }
      return trainer.params
    end
    local from_parts, from_wholes = trained(params), trained(values)
    for i, layer in ipairs(from_parts) do
      expect_equal(layer.weight:placement().mp, from_wholes[i].weight:placement().mp)
      expect_close(layer.weight:full(), from_wholes[i].weight:full())
    end
  end
end)

test("a Predictor lays out parameters that no Trainer has", function()
  local params = redco.nn.MLP({ 6, 8, 4 }, { generator = torch.Generator(2) })
  local seen
  local predictor = redco.Predictor {
    deployer = deployer,
    collate_fn = function(examples) return { x = torch.stack(examples) } end,
    pred_fn = function(_, p, batch)
      seen = p
      return redco.nn.mlp(p, batch.x)
    end,
    params_sharding_rules = { { "2.bias", 0 } },
  }
  local examples = { whole[0], whole[1], whole[2] }
  local predictions = predictor:predict { examples = examples, per_device_batch_size = 1,
    params = params }
  expect_equal(seen[1].weight:placement().mp, "shard(0)")
  expect_equal(seen[2].weight:placement().mp, "shard(1)")
  expect_equal(seen[2].bias:placement().mp, "shard(0)")
  expect_equal(params[1].weight:is_sharded(), false)
  expect_close(torch.stack(predictions), redco.nn.mlp(params, whole:narrow(0, 0, 3)))
end)

test("a rule that fits nothing, or no parameter, is an error", function()
  local params = redco.nn.MLP { 6, 8, 4 }
  local function with(rules)
    return function()
      deployer:get_sharding_rules(params, function(p) return redco.nn.mlp(p, whole) end, rules)
    end
  end
  expect_error(with { { "q_proj.weight", 0 } }, "q_proj.weight")
  expect_error(with { { "1.weight", 2 } }, "1.weight", "dimension")
  expect_error(with { { "1.weight", -1 } }, "rule 1", "from 0")
  expect_error(with { { "1.weight" } }, "rule 1", "placement is missing")
  expect_error(with { { "1.weight", "partial" } }, "partial")
  expect_error(with { "1.weight" }, "rule 1", "{pattern, placement}")
end)

test("a prompt of one process shows sharded tensors without the others", function()
  if deployer.process_id ~= 0 then return end  -- to wait for them would never end
  local pretty = require "redco.repl.pretty"
  local before = traffic()
  local text = pretty.answer({ w = halves }, { width = 80 })
  expect_equal(text, "{ w = float32 [4, 6], dp replicate, mp shard(1) }")
  text = pretty.answer(halves, { width = 80 })
  assert(text:find "^ShardedTensor%(size=%(4, 6%)", text)
  assert(text:find("\n[float32 [4, 6], dp replicate, mp shard(1)]", 1, true), text)
  rawset(_G, "halves", halves)
  text = require "redco.repl.who" ()
  rawset(_G, "halves", nil)
  assert(text:find("halves  Tensor  float32 [4, 6], dp replicate, mp shard(1)  48 bytes", 1, true),
    text)
  expect_equal(traffic(), before)
end)

testing.finish()
