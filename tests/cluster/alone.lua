-- Deployer:alone: each process works by itself and they meet again; what needs the others is an
-- error with its line, and never a hang.
local redco = require "redco"
local testing = require "testing"

local nn, torch, tree = redco.nn, redco.torch, redco.tree
local test, expect_equal = testing.test, testing.expect_equal
local expect_error = testing.expect_error

local deployer = redco.Deployer { seed = 3, verbose = false, collective_timeout = 20 }
local me, n = deployer.process_id, deployer.n_processes
local shared = redco.shard(torch.arange(8):float(), { dp = 0 })

local function collate_fn(rows)
  local batch = torch.stack(rows)
  return { x = batch:narrow(1, 0, 4), y = batch:narrow(1, 4, 1) }
end
local function loss_fn(_, _, params, batch)
  return (nn.mlp(params, batch.x, { activation = torch.tanh }) - batch.y):square():mean()
end
local initial = nn.MLP({ 4, 6, 1 }, { generator = torch.Generator(1) })
local function new_trainer(own, params)
  return redco.Trainer { deployer = own, params = params or initial, collate_fn = collate_fn,
    loss_fn = loss_fn, optimizer = redco.optim.adamw { learning_rate = 0.05 } }
end

-- Clients of different sizes.
local clients = {}
for i = 1, 5 do
  local generator = torch.Generator(100 + i)
  clients[i] = {}
  for j = 1, 2 + 3 * i do clients[i][j] = torch.randn({ 5 }, { generator = generator }) end
end

-- The seed of the client, so that it does not matter which process trains it.
local function trained_client(params, i)
  local trainer = new_trainer(redco.Deployer { seed = i, verbose = false }, params)
  for _ = 1, i do trainer:train { examples = clients[i], per_device_batch_size = 4 } end
  return tree.map(function(leaf) return leaf:detach() end, trainer.params)
end

test("rounds of federated averaging: as one process does them", function()
  local params, expected = initial, initial
  for _ = 1, 2 do
    local results = deployer:alone(function()
      local mine = {}
      for i = me + 1, #clients, n do mine["c" .. i] = trained_client(params, i) end
      return next(mine) and mine or nil
    end)
    expect_equal(#results, n)
    local all = {}
    for _, result in ipairs(results) do
      for name, client in pairs(result or {}) do all[tonumber(name:sub(2))] = client end
    end
    expect_equal(#all, #clients)
    params = tree.map(function(...) return torch.stack({ ... }):mean(0) end, unpack(all))
    -- The oracle: one process trains all clients.
    local reference = deployer:alone(function()
      local trained = {}
      for i = 1, #clients do trained[i] = trained_client(expected, i) end
      return trained
    end)[1]
    expected = tree.map(function(...) return torch.stack({ ... }):mean(0) end, unpack(reference))
    for i, leaf in ipairs(tree.leaves(expected)) do
      assert(torch.equal(tree.leaves(params)[i], leaf))
    end
  end
  -- All have the same parameters, which can train together again.
  local trainer = new_trainer(deployer, params)
  trainer:train_step { examples = clients[5] }
  expect_equal(trainer.step, 1)
end)

test("any tree comes back, by process", function()
  local results = deployer:alone(function()
    return { id = me, name = "p" .. me, list = { true, 2.5 },
      rows = torch.full({ me, 3 }, me, { dtype = "int64" }), half = torch.ones { 2 }:to "bfloat16",
      none = torch.zeros { 0 } }
  end)
  for rank = 0, n - 1 do
    local result = results[rank + 1]
    expect_equal(result.id .. result.name, rank .. "p" .. rank)
    expect_equal(result.list[2], 2.5)
    assert(torch.equal(result.rows, torch.full({ rank, 3 }, rank, { dtype = "int64" })))
    expect_equal(result.half.dtype, "bfloat16")
  end
end)

test("processes draw different numbers, and go on alike", function()
  local function draw() return torch.randn({ 3 }) end
  local draws = deployer:alone(function(own)
    math.random()
    return { a = draw(), b = torch.randn({ 3 }, { generator = own:gen_rng() }), c = math.random() }
  end)
  assert(not torch.equal(draws[1].a, draws[2].a) and not torch.equal(draws[1].b, draws[2].b))
  assert(draws[1].c ~= draws[2].c)
  local after = deployer:alone(function()
    return {}
  end)
  expect_equal(#after, n)
  local rng = torch.randn({ 2 }, { generator = deployer:gen_rng() })
  local all = redco.shard(rng, {}):full()
  assert(torch.equal(all, rng))
end)

test("what needs the others is an error that says so, with its line", function()
  local trainer = new_trainer(deployer)
  local one = clients[1]
  trainer:train_step { examples = one }
  for _, case in ipairs {
    { "all_gather", function() shared:full() end },
    { "all_reduce", function() return shared:sum():item() end },
    { "alone", function() trainer:train_step { examples = clients[1] } end },
    { "alone", function() trainer:eval_loss { examples = one, per_device_batch_size = 4 } end },
    { "random numbers that all processes draw alike", function() deployer:gen_rng() end },
    { "alone: it needs all processes", function() deployer:alone(function() end) end },
  } do
    local text, body = unpack(case)
    local line = debug.getinfo(body, "S").linedefined
    local messages = deployer:alone(function()
      if me ~= n - 1 then return end
      return { expect_error(body, text, "this one works alone", "alone.lua:" .. line) }
    end)
    for rank = 1, n - 1 do expect_equal(messages[rank], false) end
  end
  -- Nothing of this has confused the run.
  expect_equal(shared:sum():item(), 28)
  trainer:train_step { examples = clients[2] }
  expect_equal(trainer.step, 2)
end)

test("an error in one process is one in all, and they go on together", function()
  local message = expect_error(function()
    deployer:alone(function() if me == 1 then error "lost a client" end end)
  end, "lost a client")
  assert(me == 1 or message:find("process 1 failed", 1, true), message)
  expect_equal(shared:sum():item(), 28)
  expect_error(function() deployer:alone(function() return { shared } end) end,
    "is a tensor of all processes")
  expect_equal(shared:sum():item(), 28)
end)

test("a process may take longer than a collective may", function()
  local brief = redco.Deployer { seed = 3, verbose = false, collective_timeout = 0.5 }
  local results = brief:alone(function()
    if me == 0 then os.execute "sleep 1.5" end
    return { me }
  end)
  expect_equal(results[n][1], n - 1)
end)

testing.finish()
