-- Pictures of different sizes in batches of one size each.
local native = require "redco.native"
local redco = require "redco"
local testing = require "testing"

local torch = redco.torch
local test, expect_equal, expect_error = testing.test, testing.expect_equal, testing.expect_error

local function listed(sizes)
  local texts = {}
  for i, size in ipairs(sizes) do texts[i] = size[1] .. "x" .. size[2] end
  return table.concat(texts, " ")
end

-- Pictures whose pixels hold their own number.
local function pictures(sizes)
  local list = {}
  for i, size in ipairs(sizes) do
    list[i] = { name = i, image = torch.full({ 3, size[2], size[1] }, i, { dtype = "uint8" }) }
  end
  return list
end

local mixed = { { 40, 20 }, { 20, 40 }, { 30, 30 }, { 64, 60 }, { 80, 41 }, { 33, 100 }, { 31, 30 },
  { 200, 20 } }
local shapes = redco.data.aspect_buckets(32, { divisor = 8 })

test("sizes of about the same number of pixels", function()
  -- Those of Stable Diffusion XL.
  expect_equal(listed(redco.data.aspect_buckets(1024)),
    "768x1344 832x1216 896x1152 960x1088 1024x1024 1088x960 1152x896 1216x832 1344x768")
  expect_equal(listed(shapes), "24x40 32x32 40x24")
  expect_equal(listed(redco.data.aspect_buckets(64)), "64x64")
  expect_equal(listed(redco.data.aspect_buckets(64, { divisor = 32, max_ratio = 4 })),
    "32x128 64x64 128x32")
end)

test("each batch is of one bucket, and each example is in an epoch", function()
  local sampler = redco.data.bucket_sampler(pictures(mixed), { buckets = shapes, batch_size = 3 })
  local examples, seen = sampler(0), {}
  expect_equal(#examples, 9)  -- of 3, 2 and 3 pictures
  for first = 1, #examples, 3 do
    local shape = examples[first].image.shape
    for i = first, first + 2 do
      local example = examples[i]
      expect_equal(tostring(example.image.shape), tostring(shape))
      expect_equal(example.image:eq(example.name):all():item(), true)
      local width, height = unpack(mixed[example.name])
      local ratio = width / height
      local expected = ratio < 0.8 and 24 or ratio > 1.3 and 40 or 32
      expect_equal(shape[3], expected)
      seen[example.name] = true
    end
  end
  expect_equal(#seen, #mixed)
end)

local function names_of(examples)
  local names = {}
  for i = 1, #examples do names[i] = examples[i].name end
  return table.concat(names, " ")
end

test("an epoch's order depends on the seed and the epoch", function()
  local function order(seed, epoch_idx)
    return names_of(redco.data.bucket_sampler(pictures(mixed),
      { buckets = shapes, batch_size = 2, seed = seed })(epoch_idx))
  end
  expect_equal(order(1, 0), order(1, 0))
  assert(order(1, 0) ~= order(1, 1) and order(1, 0) ~= order(2, 0))
end)

test("incomplete batches are left out", function()
  local sampler = redco.data.bucket_sampler(pictures(mixed),
    { buckets = shapes, batch_size = 2, incomplete = "drop" })
  local seen = {}
  for epoch_idx = 0, 5 do
    expect_equal(#sampler(epoch_idx), 6)
    for name in names_of(sampler(epoch_idx)):gmatch "%d+" do seen[tonumber(name)] = true end
  end
  expect_equal(#seen, #mixed)  -- other pictures are left out in other epochs
  expect_error(function()
    redco.data.bucket_sampler(pictures(mixed),
      { buckets = shapes, batch_size = 4, incomplete = "drop" })
  end, "batch_size is 4, and no bucket has more than 3 examples")
end)

test("a picture covers its bucket and is cropped, and time_ids say where", function()
  local image = (255 * torch.rand({ 3, 61, 50 }, { generator = torch.Generator(1) })):to "uint8"
  local function example(crop, epoch_idx)
    return redco.data.bucket_sampler({ { image = image } }, { buckets = { { 32, 32 } },
      batch_size = 1, crop = crop, seed = 4, resample = 3 })(epoch_idx or 0)[1]
  end
  local resized = native.image_resize(image, 39, 32, 3)
  local centre = example "center"
  expect_equal(table.concat(centre.time_ids:tolist(), " "), "61 50 4 0 32 32")
  expect_equal(centre.image:equal(resized:narrow(1, 4, 32)), true)
  local tops = {}
  for epoch_idx = 0, 40 do
    local random = example("random", epoch_idx)
    local top = random.time_ids[2]:item()
    expect_equal(random.image:equal(resized:narrow(1, top, 32)), true)
    tops[top + 1] = true
  end
  expect_equal(#tops, 8)  -- from 0 to 7
  expect_equal(example("random", 3).image:equal(example("random", 3).image), true)
end)

test("workers make the pictures that the process makes", function()
  local function trained(n_workers)
    local trainer = redco.Trainer {
      deployer = redco.Deployer { seed = 1, verbose = false }, num_workers = n_workers,
      params = { w = torch.zeros { 1 } }, optimizer = redco.optim.sgd { learning_rate = 0.01 },
      collate_fn = function(examples)
        return { x = examples[1].image:float():mean() + examples[1].time_ids:sum() }
      end,
      loss_fn = function(_, _, params, batch) return (params.w * batch.x):sum() end,
    }
    trainer:fit { n_epochs = 2, per_device_batch_size = 1, shuffle = false,
      train_examples = redco.data.bucket_sampler(pictures(mixed),
        { buckets = shapes, batch_size = 1, crop = "random" }) }
    return trainer.params.w:item()
  end
  expect_equal(trained(2), trained(0))
end)

test("known sizes spare reading the images", function()
  local n_read = 0
  local set = redco.data.dataset(#mixed, function(i)
    n_read = n_read + 1
    return pictures(mixed)[i]
  end)
  local options = { buckets = shapes, batch_size = 2, sizes = mixed }
  local examples = redco.data.bucket_sampler(set, options)(0)
  expect_equal(n_read, 0)
  options.sizes = nil
  local expected = names_of(redco.data.bucket_sampler(set, options)(0))
  expect_equal(n_read, #mixed + #examples)
  expect_equal(names_of(examples), expected)
end)

test("the losses of Stable Diffusion XL take time_ids", function()
  local pipeline = redco.diffusion.from_pretrained "../cases/stable_diffusion_xl"
  local batch = pipeline.tokenize { "a cat" }
  local examples = redco.data.bucket_sampler(pictures { { 40, 20 } },
    { buckets = { { 24, 16 } }, batch_size = 1 })(0)
  batch.pixel_values = (examples[1].image:float() / 127.5 - 1):unsqueeze(0)
  local function loss(time_ids)
    batch.time_ids = time_ids
    return torch.no_grad(function()
      return (pipeline.loss(pipeline.params, batch, { rng = redco.Rng(1) })):item()
    end)
  end
  local own = loss(examples[1].time_ids:unsqueeze(0))
  assert(own ~= loss(nil), "the sizes have no effect")
  expect_equal(own, loss(torch.tensor { { 20, 40, 0, 4, 16, 24 } }:float()))
end)

test("what is wrong is named", function()
  local function refuse(options, ...)
    local o = { buckets = shapes, batch_size = 2 }
    for key, value in pairs(options) do o[key] = value end
    expect_error(function() redco.data.bucket_sampler(pictures(mixed), o) end, ...)
  end
  refuse({ batch_size = 0 }, "batch_size: expected an integer of at least 1, got 0")
  refuse({ buckets = {} }, "buckets: expected a list of {width, height}")
  refuse({ buckets = { { 8, 0.5 } } }, "buckets: height 1: expected an integer")
  refuse({ crop = "left" }, "crop: expected \"center\" or \"random\"")
  refuse({ incomplete = "keep" }, "incomplete: expected \"fill\" or \"drop\"")
  refuse({ resample = 9 }, "resample: expected 1 (Lanczos)")
  refuse({ sizes = { { 1, 1 } } }, "sizes: expected 8 pairs {width, height}")
  expect_error(function()
    redco.data.bucket_sampler({ { image = "a.png" } }, { buckets = shapes, batch_size = 1 })
  end, "example 1: image: expected a picture")
  expect_error(function() redco.data.aspect_buckets(32) end,
    "resolution: expected an integer of at least 64, got 32")
  expect_error(function() redco.data.aspect_buckets(64, { max_ratio = 0.5 }) end,
    "max_ratio: expected a number of at least 1")
end)

testing.finish()
