--- redco.federated
local federated, params = redco.federated, { w = torch.zeros {} }
local deployer = redco.Deployer { seed = 1, verbose = false }
local sgd = redco.optim.sgd { learning_rate = 0.1 }
local function loss_of(p, x) return (p.w * x - 2 * x):square():mean() end
local function train(client)  -- its batches are two numbers
  return federated.train_client(params, loss_of, { client, client + 1 }, sgd)
end
for _ = 1, 5 do
  params = federated.round(deployer, { 1, 2 }, train, function() return 1 end)
end
print((params.w - 2):abs():item() < 1e-3)  --> true

--- redco.federated.mean
local all = { { w = torch.tensor { 0, 3 } }, { w = torch.tensor { 3, 0 } } }
print(redco.federated.mean(all, { 2, 1 }).w)  --> tensor([1., 2.])

--- redco.federated.partition
local labels = torch.arange(100):remainder(10)
local clients = redco.federated.partition(labels, {
  kind = "shards", n_clients = 10, shards_per_client = 2,
  generator = torch.Generator(1),
})
print(#clients, clients[1]:numel())  --> 10  10

--- redco.federated.round (after redco.federated.train_client)
local deployer = redco.Deployer { seed = 1, verbose = false }
local function weight_of(client) return client end
local mean = redco.federated.round(deployer, { 1, 3 }, train, weight_of)
print(mean.w)  --> tensor(2.5000)

--- redco.federated.train_client
local params = { w = torch.zeros {} }
local sgd = redco.optim.sgd { learning_rate = 0.5 }
local function train(client)  -- its only batch is its number
  return redco.federated.train_client(params, function(p, batch)
    return (p.w - batch):square():mean()
  end, { client }, sgd)
end
print(train(3).w)  --> tensor(3.)
