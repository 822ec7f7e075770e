-- Samples of data sets, replay buffers, and augmentations.
local redco = require "redco"
local testing = require "testing"

local data, torch, augment = redco.data, redco.torch, redco.augment
local test, expect_error = testing.test, testing.expect_error
local expect_close, expect_equal = testing.expect_close, testing.expect_equal

local function joined(set) return table.concat(set:tolist(), " ") end

local function identity(n) return data.dataset(n, function(i) return i end) end

local function counts_of(set)
  local counts = {}
  for _, example in set:ipairs() do counts[example] = (counts[example] or 0) + 1 end
  return counts
end

test("weighted_sampler draws in proportion to the weights", function()
  local draw = data.weighted_sampler({ "a", "b", "c", "d" }, { 1, 0, 3, 0 },
    { num_samples = 8000, seed = 1 })
  local counts = counts_of(draw(0))
  expect_equal(counts.b, nil)
  expect_equal(counts.d, nil)
  assert(math.abs(counts.a - 2000) < 150, counts.a)
  expect_equal(joined(draw(3)), joined(draw(3)))
  assert(joined(draw(3)) ~= joined(draw(4)))
  local other = data.weighted_sampler({ "a", "b", "c", "d" }, { 1, 0, 3, 0 },
    { num_samples = 8000, seed = 2 })
  assert(joined(draw(3)) ~= joined(other(3)))
  expect_equal(#data.weighted_sampler({ 1, 2 }, torch.tensor { 0.5, 0.5 })(0), 2)
end)

test("weighted_sampler without replacement", function()
  local draw = data.weighted_sampler(identity(5), { 1, 1, 0, 1, 100 },
    { num_samples = 4, replacement = false })
  local first = 0
  for epoch_idx = 1, 200 do
    local counts, list = counts_of(draw(epoch_idx)), draw(epoch_idx):tolist()
    expect_equal(counts[3], nil)
    for _, i in ipairs { 1, 2, 4, 5 } do expect_equal(counts[i], 1) end
    first = first + (list[1] == 5 and 1 or 0)
  end
  assert(first > 180, first)  -- 97 %
  expect_error(function()
    data.weighted_sampler(identity(3), { 1, 0, 1 }, { num_samples = 3, replacement = false })
  end, "sampling_spec.lua:", "num_samples = 3", "2 examples")
end)

test("poisson_sampler includes each example independently", function()
  local draw = data.poisson_sampler(identity(2000), { rate = 0.1, seed = 5 })
  local sum, squares = 0, 0
  for step = 1, 100 do
    local set = draw(step)
    sum, squares = sum + #set, squares + (#set) ^ 2
    if step < 3 then
      for _, count in pairs(counts_of(set)) do expect_equal(count, 1) end
    end
  end
  assert(math.abs(sum / 100 - 200) < 6, sum)
  local variance = squares / 100 - (sum / 100) ^ 2
  assert(variance > 90 and variance < 300, variance)  -- 180
  expect_equal(joined(draw(7)), joined(draw(7)))
  expect_equal(#data.poisson_sampler(identity(9), { rate = 1 })(1), 9)
  expect_equal(#data.poisson_sampler({ "a" }, { rate = 1e-9 })(1), 0)
end)

test("training on an empty Poisson sample is a clear error", function()
  local deployer = redco.Deployer { seed = 1, verbose = false }
  local trainer = redco.Trainer {
    deployer = deployer, collate_fn = data.default_collate, params = { w = torch.zeros { 1 } },
    loss_fn = function(_, _, params, batch) return (params.w - batch.x):square():mean() end,
    optimizer = redco.optim.sgd { learning_rate = 0.1 },
  }
  local examples = { { x = 1.5 }, { x = 2.5 } }
  local empty = data.poisson_sampler(examples, { rate = 1e-9 })
  expect_error(function()
    trainer:fit { train_examples = empty, n_epochs = 1, per_device_batch_size = 2 }
  end, "the set of examples is empty")
  trainer:fit { train_examples = data.poisson_sampler(examples, { rate = 1 }), n_epochs = 3,
    per_device_batch_size = 2 }
  expect_equal(trainer.step, 3)
end)

test("mixture keeps the proportions, goes through each set, and continues", function()
  local big, small = identity(100), { "a", "b", "c" }
  local draw = data.mixture({ big, small, { "never" } },
    { weights = { 3, 1, 0 }, num_samples = 20, seed = 3 })
  local seen = {}
  for epoch_idx = 0, 9 do
    local n_big = 0
    for _, example in draw(epoch_idx):ipairs() do
      if type(example) == "number" then n_big = n_big + 1 end
      seen[example] = (seen[example] or 0) + 1
    end
    expect_equal(n_big, 15)
  end
  expect_equal(seen.never, nil)
  -- 150 draws of 100 examples and 50 of 3, each set in whole passes.
  for i = 1, 100 do assert(seen[i] == 1 or seen[i] == 2, i) end
  for _, name in ipairs(small) do assert(seen[name] == 16 or seen[name] == 17) end
  expect_equal(joined(draw(4)), joined(draw(4)))
  assert(joined(draw(4)) ~= joined(draw(5)))
  expect_equal(joined(data.mixture({ { 1 }, { 2 } }, { weights = { 1, 1 }, num_samples = 3 })(0)),
    "1 1 2")
end)

test("wrong weights, rates and sets are errors of the line that called", function()
  local function weighted(weights, options)
    return function() data.weighted_sampler({ 1, 2 }, weights, options) end
  end
  local function poisson(rate)
    return function() data.poisson_sampler({ 1 }, { rate = rate }) end
  end
  local function mixture(sets, weights, n)
    return function() data.mixture(sets, { weights = weights, num_samples = n or 4 }) end
  end
  for _, case in ipairs {
    { weighted { 0, 0 }, "all are 0" }, { weighted { 1, -1 }, "entry 2 is -1" },
    { weighted { 1, 0 / 0 }, "entry 2" }, { weighted { 1, math.huge }, "entry 2 is inf" },
    { weighted { 1 }, "expected 2 numbers", "[1]" }, { weighted { 1, "2" }, "entry 2", "string" },
    { weighted "x", "got \"x\"" }, { weighted({ 1, 1 }, { num_samples = 0 }), "num_samples", "0" },
    { function() data.weighted_sampler({}, {}) end, "no examples" },
    { poisson(1.5), "rate", "1.5" }, { poisson(0), "0" }, { poisson(nil), "nil" },
    { poisson(0 / 0), "nan" }, { function() data.poisson_sampler(3, { rate = 1 }) end, "number" },
    { mixture({ { 1 }, {} }, { 1, 1 }), "set 2", "no examples" },
    { mixture({ { 1 }, { 2 } }, { 0, 0 }), "all are 0" },
    { mixture({ { 1 } }, { 1 }, 1.5), "num_samples", "1.5" }, { mixture({}, {}), "an empty one" },
    { mixture({ { 1 } }, nil), "weights" },
    { mixture({ { 1 }, { 2 } }, { 0.995, 0.005 }, 90), "set 2", "never", "num_samples = 90" },
  } do
    expect_error(case[1], "sampling_spec.lua:", unpack(case, 2))
  end
end)

-- ---- replay buffers ----

test("a replay buffer keeps the newest rows, and is saved and restored", function()
  local buffer = data.replay_buffer { capacity = 5,
    example = { state = torch.zeros { 2 }, action = torch.tensor(0) } }
  local function rows(first, n)
    local action = torch.arange(first, first + n)
    return { action = action, state = action:float():unsqueeze(1):expand(n, 2) }
  end
  local function held() return table.concat(buffer.tensors.action:tolist(), " ") end
  local rng = redco.Rng(1)
  expect_error(function() buffer:sample(1, { generator = rng }) end, "empty")
  buffer:add(rows(1, 3))
  expect_equal(buffer.size .. " " .. buffer.position .. " " .. held(), "3 3 1 2 3 0 0")
  for _ = 1, 5 do assert(buffer:sample(8, { generator = rng }).action:min():item() >= 1) end
  buffer:add(rows(4, 4))
  expect_equal(buffer.size .. " " .. buffer.position .. " " .. held(), "5 2 6 7 3 4 5")
  buffer:add(rows(10, 13))
  expect_equal(buffer.size .. " " .. buffer.position .. " " .. held(), "5 0 18 19 20 21 22")
  buffer:add(rows(30, 0))
  expect_equal(held(), "18 19 20 21 22")
  local batch = buffer:sample(100, { generator = rng })
  assert(torch.equal(batch.state[{ {}, 1 }], batch.action:float()))

  local path = testing.folder() .. "/buffer.safetensors"
  torch.save(buffer:state_dict(), path)
  local restored = data.replay_buffer { state = torch.load(path) }
  expect_equal(tostring(restored), "ReplayBuffer(5 of 5 rows)")
  local function draw(from) return from:sample(9, { generator = redco.Rng(3) }).action end
  assert(torch.equal(draw(restored), draw(buffer)))
  restored:add(rows(40, 1))
  expect_equal(restored.tensors.action[0]:item() .. " " .. restored.position, "40 1")
end)

test("rows that do not fit a replay buffer are errors", function()
  local buffer = data.replay_buffer { capacity = 3, example = { x = torch.zeros { 2 } } }
  local rng = { generator = redco.Rng(1) }
  for _, case in ipairs {
    { function() buffer:add { y = torch.zeros { 1, 2 } } end, "expected the tensors x, got y" },
    { function() buffer:add { x = torch.zeros { 1, 3 } } end, "x", "[1, 3]" },
    { function() buffer:add { x = torch.zeros { 2 } } end, "x", "[2]" },
    { function() buffer:add { x = torch.zeros({ 1, 2 }, { dtype = "int64" }) } end, "int64" },
    { function() buffer:add { x = 3 } end, "number" },
    { function() buffer:sample(3) end, "generator" },
    { function() buffer:push {} end, "'push'" },
    { function() buffer:add({ x = torch.zeros { 1, 2 } }):sample(0, rng) end, "0" },
    { function() data.replay_buffer { capacity = 0, example = { torch.zeros {} } } end,
      "capacity" },
    { function() data.replay_buffer { capacity = 3 } end, "example" },
    { function() data.replay_buffer { capacity = 3, example = { 1 } } end, "number" },
    { function() data.replay_buffer { state = {} } end, "state" },
  } do
    expect_error(case[1], "sampling_spec.lua:", unpack(case, 2))
  end
  local both = data.replay_buffer { capacity = 3,
    example = { x = torch.zeros {}, y = torch.zeros {} } }
  expect_error(function() both:add { x = torch.zeros { 2 }, y = torch.zeros { 1 } } end, "y", "[1]")
end)

-- ---- augmentations ----

local function images(n, size)
  return torch.arange(n * 3 * size * size):float():view { n, 3, size, size } / (n * 3 * size * size)
end

test("random_crop cuts a window of the padded images, another one for each example", function()
  local x = images(64, 5)
  local y = augment.random_crop(x, { size = { 3, 4 }, rng = redco.Rng(1) })
  expect_equal(table.concat(y.shape, ","), "64,3,3,4")
  local places = {}
  for i = 0, 63 do
    local found
    for top = 0, 2 do
      for left = 0, 1 do
        if torch.equal(x[i][{ {}, { top, top + 3 }, { left, left + 4 } }], y[i]) then
          found = top .. " " .. left
        end
      end
    end
    places[assert(found, "not a window")] = true
  end
  local n_places = 0
  for _ in pairs(places) do n_places = n_places + 1 end
  expect_equal(n_places, 6)
  local padded = augment.random_crop(torch.ones { 40, 1, 4, 4 },
    { padding = 2, rng = redco.Rng(2) })
  expect_equal(padded:size(3), 4)
  assert(padded:sum({ 1, 2, 3 }):unique_consecutive():size(0) > 3)
  assert(torch.equal(y, augment.random_crop(x, { size = { 3, 4 }, rng = redco.Rng(1) })))
  assert(torch.equal(x, augment.random_crop(x, { rng = redco.Rng(1) })))
end)

test("random_horizontal_flip mirrors examples at the rate", function()
  local x = images(400, 2)
  local y = augment.random_horizontal_flip(x, { p = 0.25, rng = redco.Rng(1) })
  local mirrored = y:ne(x):any(1):any(1):any(1)
  assert(torch.equal(y[mirrored], x:flip { 3 }[mirrored]))
  assert(math.abs(mirrored:sum():item() - 100) < 35)
end)

test("color_jitter: each factor, its range, and the clamp", function()
  local x = images(50, 3) * 0.5 + 0.1
  local y = augment.color_jitter(x, { brightness = 0.5, rng = redco.Rng(1) })
  local factors = (y / x):view { 50, -1 }
  expect_close(factors, factors[{ {}, { 0, 1 } }]:expand(50, 27), 1e-4, 1e-4)
  assert(factors:min():item() >= 0.5 and factors:max():item() <= 1.5)
  assert(factors[{ {}, 0 }]:std():item() > 0.2)
  y = augment.color_jitter(x, { contrast = 0.9, saturation = 0.9, rng = redco.Rng(1) })
  assert(y:min():item() >= 0 and y:max():item() <= 1 and not torch.equal(x, y))
  local grey = x:mean({ 1 }, true):expand(50, 3, 3, 3)
  expect_close(augment.color_jitter(grey, { saturation = 0.9, rng = redco.Rng(3) }), grey, 1e-5,
    1e-5)
  assert(torch.equal(x, augment.color_jitter(x, { rng = redco.Rng(1) })))
end)

test("random_resized_crop: the whole image, and windows of it", function()
  local x = images(6, 8)
  local whole = augment.random_resized_crop(x, 8,
    { scale = { 1, 1 }, ratio = { 1, 1 }, rng = redco.Rng(1) })
  expect_close(whole, x, 1e-4, 1e-5)
  local y = augment.random_resized_crop(x, { 4, 6 }, { rng = redco.Rng(1) })
  expect_equal(table.concat(y.shape, ","), "6,3,4,6")
  for i = 0, 5 do
    assert(y[i]:min():item() >= x[i]:min():item() and y[i]:max():item() <= x[i]:max():item())
  end
end)

test("mixup: convex combinations, with lambda from the Beta distribution", function()
  local n = 4000
  local x = torch.arange(n):double():view { n, 1, 1, 1 }
  for _, alpha in ipairs { 0.1, 1, 5 } do
    local y, targets = augment.mixup(x, x:view { n }, { alpha = alpha, rng = redco.Rng(1) })
    expect_close(y:view { n }, targets)
    local lambda = (x:view { n } - targets)[{ { 1, n } }]  -- 1 - lambda, as neighbours differ by 1
    assert(lambda:min():item() > -1e-9 and lambda:max():item() < 1 + 1e-9)
    assert(math.abs(lambda:mean():item() - 0.5) < 0.025, lambda:mean():item())
    local variance = 1 / (4 * (2 * alpha + 1))
    assert(math.abs(lambda:var(0):item() / variance - 1) < 0.08, lambda:var(0):item() / variance)
  end
  local _, targets = augment.mixup(torch.zeros { 3, 1, 1, 1 }, torch.tensor { 0, 1, 1 },
    { num_classes = 2, rng = redco.Rng(1) })
  expect_close(targets:sum(1), torch.ones { 3 })
  expect_equal(targets[2][1]:item(), 1)
end)

test("wrong images and options of augmentations are errors of the line that called", function()
  local x, rng = images(2, 4), redco.Rng(1)
  for _, case in ipairs {
    { function() augment.random_crop(x, {}) end, "rng" },
    { function() augment.random_crop(x:to "uint8", { rng = rng }) end, "uint8" },
    { function() augment.random_crop(x[0], { rng = rng }) end, "[3, 4, 4]" },
    { function() augment.random_crop(x, { size = 5, rng = rng }) end, "size", "5" },
    { function() augment.random_crop(x, { padding = -1, rng = rng }) end, "padding" },
    { function() augment.random_horizontal_flip(x, { p = 2, rng = rng }) end, "p", "2" },
    { function() augment.color_jitter(x, { brightness = -1, rng = rng }) end, "brightness" },
    { function() augment.color_jitter(x[{ {}, { 0, 1 } }], { rng = rng }) end, "3 channels" },
    { function() augment.random_resized_crop(x, 4, { scale = { 0.5, 2 }, rng = rng }) end,
      "scale" },
    { function() augment.mixup(x, torch.tensor { 1, 0 }, { rng = rng }) end, "num_classes" },
    { function() augment.mixup(x, torch.zeros { 3 }, { rng = rng }) end, "[2, ...]", "[3]" },
    { function() augment.mixup(x, torch.zeros { 2 }, { alpha = 0, rng = rng }) end, "alpha" },
    { function() augment.random_crop(x, { sise = 3, rng = rng }) end, "did you mean 'size'" },
  } do
    expect_error(case[1], "sampling_spec.lua:", unpack(case, 2))
  end
end)

testing.finish()
