-- redco.federated: partitions, means of clients, and bad input. The arrays of the case fedavg are
-- compared in tests/cluster/algorithms.lua.
local redco = require "redco"
local testing = require "testing"

local federated, torch = redco.federated, redco.torch
local test, expect_error, expect_equal = testing.test, testing.expect_error, testing.expect_equal

local labels = torch.arange(600):remainder(10)

local function split(kind, n_clients, setting, own_labels)
  local clients = federated.partition(own_labels or labels, { kind = kind, n_clients = n_clients,
    shards_per_client = kind == "shards" and setting or nil,
    alpha = kind == "dirichlet" and setting or nil, generator = redco.Rng(3) })
  expect_equal(#clients, n_clients)
  local counts = torch.bincount(torch.cat(clients), { minlength = 600 })
  assert(counts:eq(1):all():item(), "not each example is at one client")
  return clients
end

test("partitions", function()
  expect_equal(split("iid", 7)[7]:numel(), 85)
  for _, rows in ipairs(split("shards", 30, 2)) do
    expect_equal(rows:numel(), 20)
    assert(torch.bincount(labels[rows]):gt(0):sum():item() <= 2)
  end
  for _, rows in ipairs(split("dirichlet", 5, 1e6)) do
    assert(math.abs(rows:numel() - 120) <= 10, rows:numel())
  end
  local sizes = {}
  for i, rows in ipairs(split("dirichlet", 5, 0.5)) do sizes[i] = rows:numel() end
  assert(math.max(unpack(sizes)) > 1.3 * math.min(unpack(sizes)), table.concat(sizes, " "))
end)

test("negative labels are classes, too", function()
  for _, kind in ipairs { "iid", "shards", "dirichlet" } do split(kind, 3, 2, labels - 4) end
end)

test("partitions that cannot be", function()
  for text, arguments in pairs {
    ["client 601 of 700 has no examples"] = { "iid", 700 },
    ["has no examples: take fewer clients, or a larger alpha"] = { "dirichlet", 50, 1e-3 },
    ["kind is even, expected iid, shards or dirichlet"] = { "even", 5 },
    ["shards_per_client: expected an integer of at least 1, got 1.5"] = { "shards", 5, 1.5 },
    ["alpha: expected a positive number, got 0"] = { "dirichlet", 5, 0 },
    ["n_clients: expected an integer of at least 1, got 0"] = { "iid", 0 },
  } do
    expect_error(function() split(unpack(arguments)) end, "federated_spec.lua:", text)
  end
  expect_error(function() federated.partition(labels:float(), { n_clients = 2 }) end,
    "expected integer labels [examples], got float32 [600]")
  expect_error(function() federated.partition(labels) end,
    "n_clients: expected an integer of at least 1, got nil")
end)

local sgd = redco.optim.sgd { learning_rate = 0.5 }
local function loss_of(params, batch) return (params.w - batch):square():mean() end
local deployer = redco.Deployer { seed = 1, verbose = false }

test("clients, and their mean by weights", function()
  local params = { w = torch.zeros {} }
  local function train(client)
    return federated.train_client(params, loss_of, { client, client }, sgd)
  end
  expect_equal(train(3).w:item(), 3)
  expect_equal(params.w:item(), 0)
  expect_equal(federated.round(deployer, { 3, 1 }, train, function(c) return c end).w:item(), 2.5)
  expect_equal(federated.round(deployer, { 3, 1 }, train, function() return 1 end).w:item(), 2)
  expect_equal(federated.mean({ { w = torch.tensor(8.0) }, { w = torch.tensor(4.0) } },
    { 0, 1 }).w:item(), 4)
end)

test("clients without data or weight", function()
  expect_error(function() federated.train_client({ w = torch.zeros {} }, loss_of, {}, sgd) end,
    "federated_spec.lua:", "a client without examples cannot train")
  expect_error(function() federated.round(deployer, {}, loss_of, loss_of) end,
    "a round needs at least one client")
  local function weighted(...)
    local list = { ... }
    return function()
      federated.round(deployer, list, function() error "no client trains" end,
        function(weight) return weight end)
    end
  end
  expect_error(weighted(0, 0), "all weights are 0")
  expect_error(weighted(1, -1), "the weight of client 2 is -1")
  expect_error(weighted(0 / 0), "the weight of client 1 is nan")
  expect_error(weighted("a"), "the weight of client 1 is a")
end)

testing.finish()
