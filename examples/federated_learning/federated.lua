--- The parts of federated averaging: which client has which examples, the training of a client, and
--- the mean of clients.
local redco = require "redco"
local torch, tree = redco.torch, redco.tree

local federated = {}

-- Examples in the order of their labels, at random within a label.
local function by_label(labels, rng)
  local order = torch.randperm(labels:numel(), { generator = rng })
  return order[torch.argsort(labels[order], { stable = true })]
end

-- Returns a list of parts whose sizes are in proportion to `shares`.
local function split_by_shares(rows, shares)
  local parts, start, sum = {}, 0, 0
  for i, share in ipairs(shares) do
    sum = sum + share
    local stop = i == #shares and rows:numel() or math.floor(sum * rows:numel() + 0.5)
    parts[i], start = rows:narrow(0, start, stop - start), stop
  end
  return parts
end

local partitions = {
  -- Each client has a random sample.
  iid = function(labels, n_clients, _, rng)
    return torch.randperm(labels:numel(), { generator = rng }):tensor_split(n_clients)
  end,
  -- Each client has `setting` pieces of the examples sorted by label, so that it knows few classes.
  shards = function(labels, n_clients, setting, rng)
    local shards = by_label(labels, rng):tensor_split(n_clients * setting)
    local order, rows = torch.randperm(#shards, { generator = rng }):tolist(), {}
    for i = 1, n_clients do
      local own = {}
      for j = 1, setting do own[j] = shards[order[(i - 1) * setting + j] + 1] end
      rows[i] = torch.cat(own)
    end
    return rows
  end,
  -- The share of each class that a client has is from a Dirichlet distribution with this parameter.
  dirichlet = function(labels, n_clients, setting, rng)
    local draws = torch.Generator(torch.randint(0, 2 ^ 40, { 1 }, { generator = rng }):item())
    local parts, rows = {}, {}
    for class = 0, labels:max():item() do
      local shares = torch._standard_gamma(
        torch.full({ n_clients }, setting, { dtype = "float64" }), { generator = draws })
      local of_class = labels:eq(class):nonzero():view { -1 }
      of_class = of_class[torch.randperm(of_class:numel(), { generator = rng })]
      parts[class + 1] = split_by_shares(of_class, (shares / shares:sum()):tolist())
    end
    for i = 1, n_clients do
      rows[i] = torch.cat(redco.data.dataset(#parts, function(c) return parts[c][i] end):tolist())
    end
    return rows
  end,
}

--- Returns a list with the rows [n] of each client, numbers of examples from 0. `labels` is [all].
function federated.partition(kind, labels, n_clients, setting, rng)
  local split = partitions[kind] or error("--partition is iid, shards or dirichlet, got " .. kind)
  if n_clients < 1 then error(("--n-clients is %d, expected at least 1"):format(n_clients)) end
  if setting <= 0 or kind == "shards" and setting % 1 ~= 0 then
    error(("the partition %s needs a positive %s, got %g"):format(kind,
      kind == "shards" and "integer" or "number", setting))
  end
  local clients = split(labels:long(), n_clients, setting, rng)
  for i, rows in ipairs(clients) do
    if rows:numel() == 0 then
      error(("client %d of %d has no examples: take fewer clients, or a larger --alpha for the "
        .. "partition dirichlet"):format(i, n_clients))
    end
  end
  return clients
end

--- Trains a copy of the parameters on these batches with a new optimizer state, and returns it.
--- loss_of(params, rows) is the mean loss of a batch.
function federated.train_client(params, loss_of, batches, optimizer)
  if #batches == 0 then error "a client without examples cannot train" end
  params = tree.map(function(param) return param:clone() end, params)
  local state, gradients_of = optimizer:init(params), redco.grad(loss_of)
  for _, rows in ipairs(batches) do optimizer:step(gradients_of(params, rows), state, params) end
  return params
end

--- Returns the mean of trees of parameters by these weights.
function federated.mean(all, weights)
  local sum = 0
  for _, weight in ipairs(weights) do sum = sum + weight end
  return tree.map(function(...)
    local result
    for i, param in ipairs { ... } do
      local part = weights[i] / sum * param
      result = result and result + part or part
    end
    return result
  end, unpack(all))
end

--- Returns the mean of train(client) over the chosen clients, a list. Each process trains every
--- n-th of them, and gets the results of all.
function federated.round(deployer, chosen, train, weight_of)
  if #chosen == 0 then error "a round needs at least one client" end
  local n = deployer.n_processes
  local results = deployer:alone(function()
    local own = {}
    for i = deployer.process_id + 1, #chosen, n do own[#own + 1] = train(chosen[i]) end
    return { own = own }
  end)
  local all, weights = {}, {}
  for i, client in ipairs(chosen) do
    all[i] = results[(i - 1) % n + 1].own[math.floor((i - 1) / n) + 1]
    weights[i] = weight_of(client)
  end
  return federated.mean(all, weights)
end

return federated
