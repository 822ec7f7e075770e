-- What one step sends: no more than the layout needs. Two processes.
local redco = require "redco"
local testing = require "testing"

local nn, torch = redco.nn, redco.torch
local test, expect_equal = testing.test, testing.expect_equal

local batch_size, length, width, n_heads = 2, 8, 16, 4
local kinds = { "all_reduce", "all_gather", "reduce_scatter", "all_to_all" }

--- What `body` sends on a group, by kind; an error where an operator had to gather its arguments.
local function sent(group, body)
  local before = redco.sharding_counters()
  body()
  local after, found = redco.sharding_counters(), {}
  for _, kind in ipairs(kinds) do
    local a, b = before.collectives[group][kind], after.collectives[group][kind]
    found[kind] = { count = b.count - a.count, bytes = b.bytes - a.bytes }
  end
  for name, gather in pairs(after.gathers) do
    local was = before.gathers[name] or { count = 0 }
    if gather.count > was.count then
      error(("%s was gathered %d times"):format(name, gather.count - was.count))
    end
  end
  return found
end

local function expect_only(found, expected)
  for _, kind in ipairs(kinds) do
    local want = expected[kind] or { 0, 0 }
    local got = ("%s: %d of %d bytes"):format(kind, found[kind].count, found[kind].bytes)
    expect_equal(got, ("%s: %d of %d bytes"):format(kind, want[1], want[2]))
  end
end

test("a decoder layer on 1x2: two all-reduces forward, two backward", function()
  local deployer = redco.Deployer { seed = 1, n_model_shards = 2, verbose = false }
  assert(deployer.mesh.mp == 2)
  local generator = torch.Generator(1)
  local function weight(n_out, n_in, dim)
    local whole = torch.randn({ n_out, n_in }, { generator = generator })
    return redco.shard(whole, { mp = dim }):detach():requires_grad_()
  end
  local norms = {}
  for i = 1, 2 do norms[i] = redco.shard(torch.ones { width }, {}):detach():requires_grad_() end
  local q, k, v = weight(width, width, 0), weight(width, width, 0), weight(width, width, 0)
  local o = weight(width, width, 1)
  local up, down = weight(4 * width, width, 0), weight(width, 4 * width, 1)
  local x = redco.shard(torch.randn({ batch_size, length, width }, { generator = generator }), {})
    :detach():requires_grad_()
  local function heads(y, w)
    return torch.linear(y, w):view { batch_size, length, n_heads, width / n_heads }:transpose(1, 2)
  end
  local function layer(input)
    local y = torch.layer_norm(input, { width }, norms[1])
    y = nn.attention(heads(y, q), heads(y, k), heads(y, v), { causal = true })
    local middle = input
      + torch.linear(y:transpose(1, 2):reshape { batch_size, length, width }, o)
    y = torch.gelu(torch.linear(torch.layer_norm(middle, { width }, norms[2]), up))
    return middle + torch.linear(y, down)
  end

  local activation = batch_size * length * width * 4  -- bytes; an all-reduce of two sends as many
  local output
  expect_only(sent("mp", function()
    output = layer(x)
    output = output * output  -- what follows a layer needs the sum
  end), { all_reduce = { 2, 2 * activation } })
  -- The first comes down from a sum of its own: only those of the layer are counted.
  local gradient = torch.ones_like(output)
  expect_only(sent("mp", function()
    output:backward(gradient)
    local _ = x.grad * x.grad
  end), { all_reduce = { 2, 2 * activation } })
end)

test("data parallel moves each gradient once", function()
  local deployer = redco.Deployer { seed = 1, verbose = false }
  assert(deployer.mesh.dp == 2)
  local params = nn.MLP({ 8, 32, 4 }, { generator = torch.Generator(1) })
  local bytes = 4 * redco.tree.count(params)
  local examples = {}
  for i = 1, 4 do examples[i] = torch.ones { 8 } * i end
  local trainer = redco.Trainer {
    deployer = deployer, params = params,
    collate_fn = function(batch) return { x = torch.stack(batch) } end,
    loss_fn = function(_, _, p, batch) return nn.mlp(p, batch.x):pow(2):mean() end,
    optimizer = redco.optim.sgd { learning_rate = 0.01 },
  }
  local function step() trainer:train { examples = examples, per_device_batch_size = 2 } end
  step()  -- the first learns the order of the gradients
  -- 2 (n - 1) / n of the bytes, in one piece; beside it the loss, one number.
  expect_only(sent("dp", step), { all_reduce = { 2, bytes + 4 } })
end)

testing.finish()
