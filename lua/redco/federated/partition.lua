--- Partitions of examples over the clients of federated learning.
local arguments = require "redco.arguments"
local check_integer = require "redco.check_integer"
local fail = require "redco.fail"
local registry = require "redco.registry"
local torch = require "redco.torch"

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

local partitions = {}

function partitions.iid(labels, o)
  return torch.randperm(labels:numel(), { generator = o.generator }):tensor_split(o.n_clients)
end

function partitions.shards(labels, o)
  local shards = by_label(labels, o.generator):tensor_split(o.n_clients * o.shards_per_client)
  local order, rows = torch.randperm(#shards, { generator = o.generator }):tolist(), {}
  for i = 1, o.n_clients do
    local own = {}
    for j = 1, o.shards_per_client do
      own[j] = shards[order[(i - 1) * o.shards_per_client + j] + 1]
    end
    rows[i] = torch.cat(own)
  end
  return rows
end

function partitions.dirichlet(labels, o)
  local seed = torch.randint(0, 2 ^ 40, { 1 }, { generator = o.generator }):item()
  local draws, parts, rows = torch.Generator(seed), {}, {}
  for class = math.min(0, labels:min():item()), labels:max():item() do
    local shares = torch._standard_gamma(
      torch.full({ o.n_clients }, o.alpha, { dtype = "float64" }), { generator = draws })
    local of_class = labels:eq(class):nonzero():view { -1 }
    of_class = of_class[torch.randperm(of_class:numel(), { generator = o.generator })]
    parts[#parts + 1] = split_by_shares(of_class, (shares / shares:sum()):tolist())
  end
  for i = 1, o.n_clients do
    local own = {}
    for c, of_class in ipairs(parts) do own[c] = of_class[i] end
    rows[i] = torch.cat(own)
  end
  return rows
end

local options = arguments("federated.partition",
  { kind = "iid", shards_per_client = 2, alpha = 0.5 }, { "n_clients", "generator" })
return registry.define("redco.federated.partition", [[
partition(labels [examples], {kind = "iid", n_clients: integer, shards_per_client = 2, alpha = 0.5, generator = nil}) -> list of Tensors
Divides examples by their integer labels among clients, and returns the rows of each client, numbers
of examples from 0. With "iid" each client has a random sample. With "shards" it has
shards_per_client pieces of the examples sorted by label, so that it knows about as many classes (arXiv
1602.05629). With "dirichlet" its share of each class is drawn from a Dirichlet distribution with the
parameter alpha: with smaller values clients differ more, also in size (arXiv 1909.06335).]],
function(labels, given)
  local where, o = "federated.partition", options(given)
  if not torch.is_tensor(labels) or labels:dim() ~= 1 or labels.dtype:find "float" then
    fail("%s: expected integer labels [examples], got %s", where, torch.is_tensor(labels)
      and ("%s [%s]"):format(labels.dtype, table.concat(labels.shape, ", "))
      or "a " .. type(labels))
  end
  check_integer(where, "n_clients", o.n_clients, 1)
  check_integer(where, "shards_per_client", o.shards_per_client, 1)
  if type(o.alpha) ~= "number" or not (o.alpha > 0 and o.alpha < 1e9) then
    fail("%s: alpha: expected a positive number, got %s", where, o.alpha)
  end
  local split = partitions[o.kind]
    or fail("%s: kind is %s, expected iid, shards or dirichlet", where, o.kind)
  local clients = split(labels:long(), o)
  for i, rows in ipairs(clients) do
    if rows:numel() == 0 then
      fail("%s: client %d of %d has no examples: take fewer clients, or a larger alpha for the "
        .. "kind dirichlet", where, i, o.n_clients)
    end
  end
  return clients
end)
