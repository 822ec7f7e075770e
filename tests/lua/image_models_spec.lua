-- Models of images: what their inputs and labels must be, and their batch norms in training.
local redco = require "redco"
local testing = require "testing"

local torch, nn = redco.torch, redco.nn
local test, expect_equal, expect_error = testing.test, testing.expect_equal, testing.expect_error
local expect_close = testing.expect_close

local where = "image_models_spec.lua:"
local resnet = { model_type = "resnet", embedding_size = 8, hidden_sizes = { 8 }, depths = { 1 },
  layer_type = "basic", num_labels = 3 }
local segformer = { model_type = "segformer", num_encoder_blocks = 1, depths = { 1 },
  sr_ratios = { 2 }, hidden_sizes = { 8 }, patch_sizes = { 3 }, strides = { 2 },
  mlp_ratios = { 2 }, num_attention_heads = { 2 }, decoder_hidden_size = 8, num_labels = 3 }

local function new(config, task)
  return redco.models.from_config(config, { task = task, generator = torch.Generator(1) })
end

local function pixels(...) return torch.rand({ ... }, { generator = torch.Generator(2) }) end

test("a Trainer moves the statistics of batch norms, and does not train them", function()
  for _, dtype in ipairs { "float32", "bfloat16" } do
    local model, x = new(resnet), pixels(4, 3, 16, 16)
    local name = "resnet.embedder.embedder."
    local y = torch.conv2d(x, model.params[name .. "convolution.weight"], nil,
      { stride = 2, padding = 3 })
    local mean = 0.1 * y:mean { 0, 2, 3 }
    local trainer = redco.Trainer {
      deployer = redco.Deployer { seed = 1, verbose = false }, params = model.params,
      optimizer = redco.optim.adamw { learning_rate = 0.1, weight_decay = 0.9 },
      compute_dtype = dtype,
      collate_fn = function() return { pixel_values = x, labels = torch.tensor { 0, 1, 2, 0 } } end,
      loss_fn = function(_, _, params, batch, train)
        return (model.loss(params, batch, { train = train }))
      end,
    }
    trainer:train { examples = { 1 }, per_device_batch_size = 1 }
    local moved = trainer.params[name .. "normalization.running_mean"]
    local tolerance = dtype == "float32" and 1e-6 or 2e-3
    expect_close(moved, mean, tolerance, tolerance)
    model(trainer.params, { pixel_values = x })
    expect_close(trainer.params[name .. "normalization.running_mean"], moved, 0, 0)
  end
end)

test("labels of pixels: their size is free, one of them is none", function()
  local model, x = new(segformer, "semantic_segmentation"), pixels(2, 3, 16, 12)
  local labels = torch.randint(0, 3, { 2, 9, 7 }, { generator = torch.Generator(3) })
  labels:narrow(1, 0, 4):fill_(255)
  local logits = model(model.params, { pixel_values = x })
  expect_equal(table.concat(logits.shape, ","), "2,3,8,6")
  local loss = model.loss(model.params, { pixel_values = x, labels = labels })
  local resized = torch.upsample_bilinear2d(logits, { 9, 7 }, false)
  local known = resized:narrow(2, 4, 5):permute { 0, 2, 3, 1 }
  expect_close(loss, nn.cross_entropy(known, labels:narrow(1, 4, 5)), 1e-5, 1e-6)
  local function expect_wrong(given, ...)
    expect_error(function()
      model.loss(model.params, { pixel_values = x, labels = given })
    end, where, ...)
  end
  expect_wrong(nil, "labels are missing")
  expect_wrong(labels:select(1, 0), "[2, 7]", "[2, height, width]")
  expect_wrong(labels:float(), "float32", "int64")
  expect_wrong(labels:narrow(0, 0, 1), "[1, 9, 7]")
end)

test("wrong images and configurations", function()
  for _, case in ipairs { { new(resnet), { 2, 1, 8, 8 }, "[batch, 3, height, width]" },
    { new(segformer), { 2, 1, 8, 8 }, "[batch, 3, height, width]" },
    { new(segformer), { 2, 3, 2, 2 }, "1 x 1 places", "larger images" } } do
    expect_error(function()
      case[1](case[1].params, { pixel_values = pixels(unpack(case[2])) })
    end, where, unpack(case, 3))
  end
  local function with(config, key, value)
    local changed = {}
    for name, old in pairs(config) do changed[name] = old end
    changed[key] = value
    return function() new(changed) end
  end
  expect_error(with(resnet, "layer_type", "wide"), where, "'wide'", "'basic'")
  expect_error(with(resnet, "depths", { 1, 2 }), where, "depths has 2 numbers")
  expect_error(with(segformer, "strides", { 1, 2 }), where, "strides has 2 numbers")
  expect_error(with(segformer, "num_attention_heads", { 3 }), where, "not a multiple")
end)

test("SigLIP 2's images of different sizes", function()
  local model = new { model_type = "siglip2_vision_model", hidden_size = 16, num_hidden_layers = 1,
    num_attention_heads = 2, intermediate_size = 24, num_channels = 3, patch_size = 2,
    num_patches = 9 }
  local shapes = torch.tensor { { 2, 3 }, { 4, 1 } }
  local mask = torch.tensor { { 1, 1, 1, 1, 1, 1 }, { 1, 1, 1, 1, 0, 0 } }
  local x = pixels(2, 6, 12)
  local function features(values, sizes, known)
    return model(model.params, { pixel_values = values, spatial_shapes = sizes,
      pixel_attention_mask = known })
  end
  -- Padding does not count.
  local alone = features(x:narrow(0, 1, 1):narrow(1, 0, 4), shapes:narrow(0, 1, 1))
  expect_close(features(x, shapes, mask):narrow(0, 1, 1), alone, 1e-5, 1e-6)
  for _, case in ipairs {
    { { x }, "spatial_shapes are missing" },
    { { pixels(2, 3, 4, 4), shapes }, "patches", "[batch, patches, 12]" },
    { { x, shapes:narrow(0, 0, 1) }, "[2, 2]" },
    { { x, shapes, mask:narrow(1, 0, 3) }, "pixel_attention_mask is [2, 3]" },
  } do
    expect_error(function() features(unpack(case[1])) end, where, unpack(case, 2))
  end
end)

testing.finish()
