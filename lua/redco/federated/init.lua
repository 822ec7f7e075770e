--- redco.federated: the parts of federated averaging (arXiv 1602.05629).
local fail = require "redco.fail"
local grad = require("redco.transforms").grad
local registry = require "redco.registry"
local strict = require "redco.strict"
local tree = require "redco.tree"

local federated = { partition = require "redco.federated.partition" }

local function define(name, text, f)
  federated[name] = registry.define("redco.federated." .. name, text, f)
end

define("train_client", [[
train_client(params, loss_of: function, batches: list, optimizer: Optimizer) -> table
Trains a copy of the parameters on the batches of a client, one step for each, with a new optimizer
state, and returns it. loss_of(params, batch) is the mean loss of a batch, which is any value, such as
a tensor of row numbers.]], function(params, loss_of, batches, optimizer)
  if #batches == 0 then
    fail "federated.train_client: a client without examples cannot train: there are no batches"
  end
  params = tree.map(function(param) return param:clone() end, params)
  local state, gradients_of = optimizer:init(params), grad(loss_of)
  for _, batch in ipairs(batches) do optimizer:step(gradients_of(params, batch), state, params) end
  return params
end)

local function check_weights(where, all, weights)
  local sum = 0
  if #all == 0 then fail("%s: expected at least one client, got none", where) end
  for i = 1, #all do
    local weight = weights[i]
    if type(weight) ~= "number" or not (weight >= 0 and weight < math.huge) then
      fail("%s: the weight of client %d is %s, expected a number of at least 0", where, i,
        weight)
    end
    sum = sum + weight
  end
  if sum == 0 then fail("%s: all weights are 0", where) end
  return sum
end

define("mean", [[
mean(all: list, weights: list of numbers) -> table
Returns the mean of trees of parameters, weighted by `weights`.]], function(all, weights)
  local sum = check_weights("federated.mean", all, weights)
  return tree.map(function(...)
    local result
    for i, param in ipairs { ... } do
      local part = weights[i] / sum * param
      result = result and result + part or part
    end
    return result
  end, unpack(all))
end)

define("round", [[
round(deployer: Deployer, clients: list, train: function, weight_of: function) -> table
Returns the mean of train(client), a tree of parameters, over the given clients, weighted by
weight_of(client), such as its number of examples. The processes share the clients: each trains its
part inside `Deployer:alone`, and all get the mean, the same for any number of processes.]],
function(deployer, clients, train, weight_of)
  if #clients == 0 then fail "federated.round: a round needs at least one client" end
  local weights, n = {}, deployer.n_processes
  for i, client in ipairs(clients) do weights[i] = weight_of(client) end
  check_weights("federated.round", clients, weights)
  local results = deployer:alone(function()
    local own = {}
    for i = deployer.process_id + 1, #clients, n do own[#own + 1] = train(clients[i]) end
    return { own = own }
  end)
  local all = {}
  for i = 1, #clients do all[i] = results[(i - 1) % n + 1].own[math.floor((i - 1) / n) + 1] end
  return federated.mean(all, weights)
end)

return registry.define("redco.federated", [[
redco.federated
The parts of federated averaging: which client has which examples, the training of a client, and the
mean of clients. examples/federated_learning uses them.]], strict("redco.federated", federated))
