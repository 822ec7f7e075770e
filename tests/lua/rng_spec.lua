-- Random numbers by the element's place: redco.Rng, and what draws from it.
local redco = require "redco"
local regression = require "regression"
local testing = require "testing"

local torch, nn, optim = redco.torch, redco.nn, redco.optim
local test, expect_error = testing.test, testing.expect_error
local expect_close, expect_equal = testing.expect_close, testing.expect_equal

local function same(a, b) assert(torch.equal(a, b), tostring(a) .. tostring(b)) end
local function differ(a, b) assert(not torch.equal(a, b), tostring(a)) end

test("a seed gives one sequence of draws, to every kind of operator", function()
  local draws = {
    function(g) return torch.rand({ 3 }, g) end,
    function(g) return torch.randn({ 3 }, g) end,
    function(g) return torch.randint(10, { 30 }, g) end,
    function(g) return torch.randperm(20, g) end,
    function(g) return torch.empty({ 3 }):normal_(0, 1, g) end,
    function(g) return torch.empty({ 3 }):uniform_(0, 1, g) end,
    function(g) return torch.empty({ 3 }):exponential_(1, g) end,
    function(g) return torch.bernoulli(torch.full({ 90 }, 0.5), g) end,
    function(g) return torch.normal(torch.zeros { 3 }, torch.ones { 3 }, g) end,
    function(g) return torch.multinomial(torch.ones { 50 }, 5, g) end,
    function(g) return torch.empty({ 3 }, { requires_grad = true }):clone():normal_(0, 1, g) end,
    function(g) return torch.bernoulli(torch.full({ 90 }, 0.5), { generator = g.generator,
      out = torch.empty { 90 } }) end,
  }
  for i, draw in ipairs(draws) do
    local a, b = redco.Rng(7), redco.Rng(7)
    local first = draw { generator = a }
    local _, count = a:state()
    assert(count == 1, i .. " drew " .. count .. " times")
    same(first, draw { generator = b })
    differ(first, draw { generator = b })
    differ(first, draw { generator = redco.Rng(8) })
  end
end)

test("what an Rng says of itself; its state is two numbers", function()
  local rng = redco.Rng(5)
  expect_equal(tostring(rng), "Generator(seed = 5, draws = 0)")
  torch.rand({ 2 }, { generator = rng })
  expect_equal(tostring(rng), "Generator(seed = 5, draws = 1)")
  local seed, draws = rng:state()
  expect_equal(seed, 5)
  expect_equal(rng:seed(), 5)
  expect_equal(draws, 1)
  local next = torch.rand({ 2 }, { generator = rng })
  rng:set_state(seed, draws)
  same(torch.rand({ 2 }, { generator = rng }), next)
  local child = rng:split(2)[1]
  local again = redco.Rng(1)
  again:set_state(child:state())
  same(torch.rand({ 2 }, { generator = again }), torch.rand({ 2 }, { generator = child }))
  expect_equal(torch.Generator(2 ^ 40):seed(), 2 ^ 40)
end)

test("split and fold_in: as JAX's keys, from the seed and the argument alone", function()
  local rng = redco.Rng(3)
  local before = rng:split(3)
  expect_equal(#before, 3)
  torch.rand({ 2 }, { generator = rng })
  local seen = { [tostring(rng:seed())] = true }
  for i, part in ipairs(rng:split(3)) do
    expect_equal(tostring(part), tostring(before[i]))
    local folded = rng:fold_in(i - 1)
    expect_equal(tostring(folded), tostring(rng:fold_in(i - 1)))
    for _, each in ipairs { part, folded } do
      assert(not seen[tostring(each:seed())])
      seen[tostring(each:seed())] = true
    end
  end
  expect_error(function() torch.Generator(1):split(2) end, "rng_spec.lua:", "redco.Rng")
  expect_error(function() rng:split(0) end, "n = 0")
  expect_error(function() rng.split(3, 2) end, "expected a Generator")
  expect_error(function() redco.Rng() end, "redco.Rng: seed")
end)

test("torch.Generator and manual_seed stay PyTorch's", function()
  torch.manual_seed(0)
  local default = torch.rand { 2 }
  same(torch.rand({ 2 }, { generator = torch.Generator(0) }), default)
  expect_close(default, torch.tensor { 0.4962566, 0.7682218 }, 1e-6)
end)

test("with_rng gives its rng to operators that name none; a named one wins", function()
  local x = torch.ones { 4, 50 }
  local named = redco.Rng(5)
  local function draw()
    return { torch.dropout(x, 0.5, true), torch.randn_like(x), torch.rand { 9 },
      torch.rand({ 9 }, { generator = torch.Generator(1) }),
      torch.rand({ 9 }, { generator = named }) }
  end
  local a = redco.with_rng(redco.Rng(2), draw)
  named:set_state(5, 0)
  local b = redco.with_rng(redco.Rng(2), draw)
  for i in ipairs(a) do same(a[i], b[i]) end
  same(a[4], torch.rand({ 9 }, { generator = torch.Generator(1) }))
  same(a[5], torch.rand({ 9 }, { generator = redco.Rng(5) }))
  local one, two = redco.with_rng(redco.Rng(2), function(...) return ... end, 1, 2)
  expect_equal(one + two, 3)
  expect_error(function() redco.with_rng(redco.Rng(2), error, "mine") end, "mine")
  torch.manual_seed(0)
  local outside = torch.rand { 9 }
  torch.manual_seed(0)
  same(outside, torch.rand({ 9 }))
  expect_error(function() redco.with_rng(torch.Generator(2), draw) end, "redco.Rng")
  expect_error(function() redco.with_rng(redco.Rng(2), 5) end, "expected a function")
end)

test("what has no version by place is refused by name", function()
  expect_error(function() torch.poisson(torch.ones { 2 }, { generator = redco.Rng(1) }) end,
    "rng_spec.lua:", "poisson", "torch.Generator")
end)

test("a checkpoint draws the same numbers again, those without a generator too", function()
  local x = torch.ones({ 100 }, { requires_grad = true })
  local function noisy(t)
    return torch.dropout(t * 2, 0.5, true) * torch.rand_like(t)
  end
  local function gradient(f)
    return redco.with_rng(redco.Rng(4), function()
      local y = f(x)
      torch.rand { 5 }
      return torch.autograd.grad(y:sum(), { x })[1], torch.rand { 3 }
    end)
  end
  local plain, after = gradient(noisy)
  local again, after_again = gradient(function(t) return redco.checkpoint(noisy, t) end)
  same(plain, again)
  same(after, after_again)
  -- Backward outside of the scope.
  local y = redco.with_rng(redco.Rng(4), function() return redco.checkpoint(noisy, x) end)
  same(torch.autograd.grad(y:sum(), { x })[1], plain)
end)

test("vmap: the same numbers for each example, or different ones", function()
  local x = torch.ones { 6, 40 }
  local function noisy(row) return torch.dropout(row, 0.5, true) end
  for _, randomness in ipairs { "same", "different" } do
    local function run(seed)
      return redco.with_rng(redco.Rng(seed), function()
        return redco.vmap(noisy, { randomness = randomness })(x)
      end)
    end
    local y = run(1)
    expect_equal(torch.equal(y[0], y[1]), randomness == "same")
    same(y, run(1))
    differ(y, run(2))
  end
end)

test("attention's dropout comes from the rng", function()
  local q = torch.randn({ 1, 2, 4, 8 }, { generator = redco.Rng(1) })
  local function run(seed)
    return redco.with_rng(redco.Rng(seed), function()
      return torch.scaled_dot_product_attention(q, q, q, nil, 0.5, true)
    end)
  end
  same(run(1), run(1))
  differ(run(1), run(2))
end)

-- ---- the Trainer ----

local function dropout_run(o)
  local trainer = regression.trainer_of {
    deployer = regression.deployer { seed = 3 }, compute_dtype = "float64",
    params = redco.tree.map(torch.Tensor.double,
      nn.MLP({ 3, 16, 1 }, { generator = redco.Rng(1) })),
    optimizer = optim.adamw { learning_rate = 0.01 },
    loss_fn = function(rng, _, params, batch, is_training)
      assert(rng)
      local x = torch.dropout(batch.x:double(), 0.2, is_training)
      x = nn.linear(params[1], x):relu()
      x = nn.dropout(x, 0.5, { train = is_training, rng = rng })
      if o.checkpoint then
        x = redco.checkpoint(function(t) return torch.dropout(t, 0.1, is_training) end, x)
      else
        x = torch.dropout(x, 0.1, is_training)
      end
      local y = nn.linear(params[2], x):squeeze(-1) + 0.1 * torch.randn_like(batch.y:double())
      return (y - batch.y):square():mean()
    end }
  local losses = {}
  -- 30 examples in batches of 12: the last one is smaller.
  for _ = 1, 3 do
    trainer:fit { train_examples = regression.examples_of(30), n_epochs = 2,
      per_device_batch_size = 12 / o.accumulate, global_batch_size = 12,
      eval_examples = regression.examples_of(10) }
    losses[#losses + 1] = trainer:eval_loss { examples = regression.examples_of(12),
      per_device_batch_size = 12 / o.accumulate }
  end
  return losses, trainer.params
end

test("accumulation changes no number: dropout, noise and checkpoints at 1, 2 and 4", function()
  local losses, params = dropout_run { accumulate = 1 }
  for _, o in ipairs { { accumulate = 2 }, { accumulate = 4 }, { accumulate = 12 },
    { accumulate = 1, checkpoint = true }, { accumulate = 4, checkpoint = true } } do
    local other_losses, other_params = dropout_run(o)
    for i in ipairs(losses) do
      assert(math.abs(losses[i] / other_losses[i] - 1) < 1e-12,
        ("%d: %.17g, %.17g"):format(o.accumulate, losses[i], other_losses[i]))
    end
    expect_close(other_params[1].weight:detach(), params[1].weight:detach(), 1e-11, 1e-12)
  end
end)

test("a Predictor's batch size changes no number", function()
  local trainer = regression.trainer_of()
  local function predict(batch_size)
    local predictor = regression.trainer_of { deployer = regression.deployer { seed = 3 } }
      :get_default_predictor { pred_fn = function(rng, params, batch)
        return torch.rand({ batch.y:numel() }, { generator = rng }) + torch.rand_like(batch.y)
      end }
    return torch.stack(predictor:predict { examples = regression.examples_of(10),
      per_device_batch_size = batch_size, params = trainer.params })
  end
  same(predict(10), predict(4))
  same(predict(10), predict(1))
end)

testing.finish()
