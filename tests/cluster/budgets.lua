-- One step sends no more than its layout needs. Two processes.
local redco = require "redco"
local testing = require "testing"
local traffic = require "traffic"

local nn, torch = redco.nn, redco.torch
local test, expect_equal = testing.test, testing.expect_equal
local sent, expect_only = traffic.sent, traffic.expect_only

local batch_size, length, width, n_heads = 2, 8, 16, 4

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

test("rows that several products read are gathered once, and again after a write", function()
  redco.Deployer { seed = 1, n_model_shards = 2, sequence_parallel = true, verbose = false }
  local generator = torch.Generator(1)
  local function random(shape, dim)
    return redco.shard(torch.randn(shape, { generator = generator }), { mp = dim })
  end
  -- In the recorded history alone: elsewhere one process may write to its part by itself.
  local x, other = random({ 6, 8 }, 0):requires_grad_(), random({ 6, 8 }, 0):requires_grad_()
  local weights = { random({ 8, 10 }, 1), random({ 8, 10 }, 1), random({ 6, 10 }, 1) }
  local function expect_gathers(n, body)
    local y
    local found = sent("mp", function() y = body() end)
    expect_only(found, { all_gather = { n, n * 3 * 8 * 4 } })
    return y
  end
  local function expect_product(n)
    local y = expect_gathers(n, function() return x:mm(weights[1]) end)
    testing.expect_close(y:full(), x:full():mm(weights[1]:full()), 1e-5)
  end
  expect_product(1)
  expect_gathers(0, function() return x:mm(weights[2]) end)
  local seen_otherwise = expect_gathers(0, function() return x:t():mm(weights[3]) end)
  testing.expect_close(seen_otherwise:full(), x:full():t():mm(weights[3]:full()), 1e-5)
  expect_product(0)
  for _, write in ipairs {
    function() x:mul_(2) end,
    function() x:narrow(1, 2, 3):fill_(7) end,
    function() x:to_local():add_(1) end,
  } do
    torch.no_grad(write)
    expect_product(1)
    expect_product(0)
  end
  expect_gathers(1, function() return other:mm(weights[1]) end)
  expect_product(1)  -- one is held at a time
  local plain = random({ 6, 8 }, 0)
  expect_gathers(2, function() return plain:mm(weights[1]) + plain:mm(weights[2]) end)
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

--- Trains a small GPT under one level of zero, all of whose parameters can be shared; returns a
--- function that makes a step, the trainer and the examples.
local function gpt(zero)
  local deployer = redco.Deployer { seed = 1, zero = zero, zero_min_size = 1, verbose = false }
  local model = redco.models.from_config({
    model_type = "gpt2", vocab_size = 32, n_positions = length,
    n_embd = width, n_layer = 3, n_head = n_heads,
  }, { generator = torch.Generator(1) })
  local examples = {}
  for i = 1, 4 do examples[i] = torch.arange(length + 1) + i end
  local trainer = redco.Trainer {
    deployer = deployer, params = model.params,
    collate_fn = function(batch)
      local tokens = torch.stack(batch)
      return { input_ids = tokens:narrow(1, 0, length), labels = tokens:narrow(1, 1, length) }
    end,
    loss_fn = function(rng, _, params, batch, is_training)
      return model.loss(params, batch, { train = is_training, rng = rng })
    end,
    optimizer = redco.optim.adamw { learning_rate = 0.01 },
  }
  local function step() trainer:train { examples = examples, per_device_batch_size = 2 } end
  return step, trainer, examples
end

--- The bytes of a tree's tensors that this process holds.
local function held(values)
  local bytes = 0
  for _, leaf in ipairs(redco.tree.leaves(values)) do
    bytes = bytes + leaf:to_local():nbytes()
  end
  return bytes
end

for zero = 0, 3 do
  test(("zero = %d holds and moves what it promises"):format(zero), function()
    local step, trainer = gpt(zero)
    step()
    step()  -- the first learned the order of the gradients, and of the parameters
    local whole = 4 * redco.tree.count(trainer.params)
    expect_equal(held(trainer.params), zero == 3 and whole / 2 or whole)
    -- Two moments of each parameter, and the count of steps.
    expect_equal(held(trainer.state.opt_state), (zero > 0 and whole or 2 * whole) + 4)
    -- The loss and its weight, the loss that is shown; the norms of the parts of 40 gradients.
    local numbers = zero > 0 and { 3, 3 * 4 + 40 * 4 } or { 2, 3 * 4 }
    local found = sent("dp", step)
    if zero == 0 then
      expect_only(found, { all_reduce = { numbers[1] + 1, numbers[2] + whole } })
    elseif zero < 3 then
      expect_only(found, {
        all_reduce = numbers, reduce_scatter = { 1, whole / 2 }, all_gather = { 1, whole / 2 },
      })
    else
      -- Forward and backward, in six blocks: three layers, the last norm, the two embeddings. That
      -- of the positions is read in forward alone.
      local once = held { trainer.params["transformer.wpe.weight"] }
      expect_only(found, {
        all_reduce = numbers, reduce_scatter = { 1, whole / 2 },
        all_gather = { 2 * 6 - 1, whole - once },
      })
    end
  end)
end

test("zero = 2 holds parts of gradients while they add up, zero = 1 reduces them once", function()
  for zero = 1, 2 do
    local _, trainer, examples = gpt(zero)
    local function step()
      trainer:fit {
        train_examples = examples, per_device_batch_size = 1, global_batch_size = 4, n_epochs = 1,
      }
    end
    step()
    expect_equal(sent("dp", step).reduce_scatter.count, zero)
  end
end)

testing.finish()
