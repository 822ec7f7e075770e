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

local real_time = { model_type = "rt_detr", num_labels = 3, d_model = 8, encoder_hidden_dim = 8,
  num_queries = 4, encoder_in_channels = { 8, 12 }, decoder_in_channels = { 8, 8 },
  feat_strides = { 8, 16 }, encode_proj_layers = { 1 }, num_feature_levels = 2,
  encoder_attention_heads = 2, decoder_attention_heads = 2, encoder_ffn_dim = 12,
  decoder_ffn_dim = 12, decoder_layers = 2,
  backbone_config = { model_type = "rt_detr_resnet", embedding_size = 8, layer_type = "basic",
    hidden_sizes = { 8, 8, 12 }, depths = { 1, 1, 1 }, out_features = { "stage2", "stage3" } } }

local detr = { model_type = "detr", use_timm_backbone = false, num_labels = 3, d_model = 16,
  backbone_config = { model_type = "resnet", embedding_size = 4, hidden_sizes = { 4, 8 },
    depths = { 1, 1 }, layer_type = "basic", out_features = { "stage2" } },
  encoder_layers = 1, decoder_layers = 1, encoder_attention_heads = 2, decoder_attention_heads = 2,
  encoder_ffn_dim = 12, decoder_ffn_dim = 12, num_queries = 4 }

test("the cheapest assignment", function()
  local assignment = require "redco.models.tasks.assignment"
  local rng = torch.Generator(4)
  -- The least sum of rows i to n with the columns that are left, of which `n_left` get a row.
  local function least(costs, m, i, n_left, is_used)
    if n_left == 0 then return 0 end
    local best = #costs - i >= n_left and least(costs, m, i + 1, n_left, is_used) or math.huge
    for j = 1, m do
      if not is_used[j] then
        is_used[j] = true
        best = math.min(best, costs[i][j] + least(costs, m, i + 1, n_left - 1, is_used))
        is_used[j] = nil
      end
    end
    return best
  end
  for n = 1, 5 do
    for m = 1, 5 do
      local costs = torch.randn({ n, m }, { generator = rng }):tolist()
      local sum, count, is_used = 0, 0, {}
      for i, j in pairs(assignment(costs, n, m)) do
        assert(not is_used[j])
        sum, count, is_used[j] = sum + costs[i][j], count + 1, true
      end
      expect_equal(count, math.min(n, m))
      assert(math.abs(sum - least(costs, m, 1, count, {})) < 1e-9)
    end
  end
  expect_equal(#assignment({}, 0, 3), 0)
end)

test("DETR: the loss of objects that queries have found, and padding", function()
  local model, x = new(detr), pixels(2, 3, 32, 40)
  local logits, boxes = model(model.params, { pixel_values = x })
  expect_equal(table.concat(logits.shape, ",") .. " " .. table.concat(boxes.shape, ","),
    "2,4,4 2,4,4")
  local labels = torch.tensor { { 2, -100 }, { -100, -100 } }
  local function loss(known) return model.loss(model.params,
    { pixel_values = x, labels = labels, boxes = known }) end
  local known = torch.zeros { 2, 2, 4 }
  known[0][0]:copy_(boxes[0][1]:detach())  -- only the classes are left
  local found = loss(known)
  known[0][1]:fill_(7)
  expect_close(loss(known), found, 0, 0)
  local by_class = -logits:log_softmax(-1)
  local weights = torch.full({ 2, 4 }, 0.1)
  local classes = torch.full({ 2, 4 }, 3, { dtype = "int64" })
  local least = math.huge
  for query = 0, 3 do  -- boxes of a new model are alike
    local w, each = weights + 0, classes + 0
    w[0][query], each[0][query] = 1, 2
    local sum = by_class:gather(2, each:unsqueeze(-1)):squeeze(-1) * w
    least = math.min(least, math.abs((sum:sum() / w:sum() - found):item()))
  end
  assert(least < 1e-3, least)
end)

test("what was found: scores, labels and boxes", function()
  local logits = torch.tensor { { { 9, 0, 0 }, { 0, 0, 9 } }, { { 0, 3, 0 }, { 0, 2, 0 } } }:float()
  local boxes = torch.tensor { { { 0.5, 0.5, 0.5, 1 }, { 0.2, 0.2, 0.1, 0.1 } },
    { { 0.5, 0.5, 1, 1 }, { 0.25, 0.25, 0.5, 0.5 } } }
  local found = redco.models.detections(logits, boxes, { sizes = { { 10, 20 }, { 8, 4 } } })
  expect_equal(#found, 2)
  expect_equal(table.concat(found[1].labels:tolist()), "0")
  expect_close(found[1].scores, logits[0][0]:softmax(-1):narrow(0, 0, 1), 0, 1e-7)
  expect_close(found[1].boxes, torch.tensor { { 5, 0, 15, 10 } }, 0, 1e-5)
  expect_equal(table.concat(found[2].labels:tolist()), "11")
  expect_close(found[2].boxes, torch.tensor { { 0, 0, 4, 8 }, { 0, 0, 2, 4 } }, 0, 1e-5)
  local parts = redco.models.detections(logits, boxes, { threshold = 0.9 })
  expect_close(parts[2].boxes, torch.tensor { { 0, 0, 1, 1 } }, 0, 1e-6)
  expect_equal(#parts[1].labels:tolist(), 1)
  expect_equal(redco.models.detections(logits, boxes, { threshold = 1 })[1].boxes:size(0), 0)
  local function expect_wrong(l, b, o, ...)
    expect_error(function() redco.models.detections(l, b, o) end, where, ...)
  end
  -- Classes that are yes or no each: a query may be two objects.
  local focal = redco.models.detections(logits:narrow(2, 0, 2) - 1, boxes,
    { threshold = 0.6, use_focal_loss = true })
  expect_equal(table.concat(focal[1].labels:tolist()), "0")
  expect_equal(table.concat(focal[2].labels:tolist()), "11")
  expect_close(focal[2].scores, torch.tensor { 2, 1 }:float():sigmoid(), 0, 1e-6)
  expect_close(focal[2].boxes, torch.tensor { { 0, 0, 1, 1 }, { 0, 0, 0.5, 0.5 } }, 0, 1e-6)
  expect_wrong(logits[0], boxes, {}, "logits", "[images, queries, classes + 1]")
  expect_wrong(logits, boxes:narrow(2, 0, 3), {}, "boxes", "[images, queries, 4]")
  expect_wrong(logits, boxes, { sizes = { { 1, 1 } } }, "1 sizes for 2 images")
end)

test("DETR: weights by the names of timm", function()
  local given = {}
  for key, value in pairs(detr) do given[key] = value end
  given.use_timm_backbone, given.backbone_config, given.backbone = true, nil, "resnet18"
  local timm = new(given)
  given.use_timm_backbone, given.backbone = false, nil
  given.backbone_config = { model_type = "resnet", hidden_sizes = { 64, 128, 256, 512 },
    depths = { 2, 2, 2, 2 }, layer_type = "basic", out_features = { "stage4" } }
  local plain, params = new(given), {}
  local prefix = "model.backbone.conv_encoder.model."
  for name, weight in pairs(timm.params) do
    local rest = name:sub(1, #prefix) == prefix and name:sub(#prefix + 1)
    if rest then
      rest = rest:gsub("^conv1", "embedder.embedder.convolution")
        :gsub("^bn1", "embedder.embedder.normalization")
        :gsub("^layer(%d)%.(%d)%.", function(stage, i)
          return ("encoder.stages.%d.layers.%s."):format(stage - 1, i)
        end)
        :gsub("downsample%.0", "shortcut.convolution"):gsub("downsample%.1",
          "shortcut.normalization")
        :gsub("%.conv(%d)", function(k) return (".layer.%d.convolution"):format(k - 1) end)
        :gsub("%.bn(%d)", function(k) return (".layer.%d.normalization"):format(k - 1) end)
      name = prefix .. rest
    end
    assert(plain.params[name], name)
    params[name] = weight
  end
  local x = pixels(1, 3, 64, 48)
  expect_close(plain(params, { pixel_values = x }), timm(timm.params, { pixel_values = x }), 0, 0)
  local function is_frozen(name) return timm.family.buffers[prefix .. name] end
  assert(is_frozen "conv1.weight" and is_frozen "layer1.0.conv1.weight"
    and is_frozen "layer2.0.bn1.bias" and is_frozen "layer4.0.downsample.1.weight")
  assert(not is_frozen "layer2.0.conv1.weight" and not is_frozen "layer4.0.downsample.0.weight")
end)

test("DETR: wrong labels, masks and backbones", function()
  local model, x = new(detr), pixels(2, 3, 32, 40)
  local function expect_wrong(inputs, ...)
    inputs.pixel_values = x
    expect_error(function() model.loss(model.params, inputs) end, where, ...)
  end
  local labels, boxes = torch.tensor { { 0 }, { 2 } }, torch.rand { 2, 1, 4 }
  expect_wrong({ labels = labels }, "boxes are missing")
  expect_wrong({ boxes = boxes }, "labels are missing")
  expect_wrong({ labels = labels:float(), boxes = boxes }, "float32", "int64 [2, objects]")
  expect_wrong({ labels = labels, boxes = boxes:narrow(2, 0, 3) }, "[2, 1, 3]", "[2, 1, 4]")
  expect_wrong({ labels = labels + 1, boxes = boxes }, "the class 3", "num_labels = 3")
  expect_wrong({ labels = labels, boxes = boxes, pixel_mask = torch.ones { 2, 4, 4 } },
    "pixel_mask is [2, 4, 4], expected [2, 32, 40]")
  local function expect_refused(key, value, ...)
    local given = {}
    for name, old in pairs(detr) do given[name] = old end
    given[key] = value
    expect_error(function() new(given) end, where, ...)
  end
  expect_refused("backbone_config", { model_type = "swin" }, "'swin'", "only 'resnet'")
  expect_refused("backbone_config", { model_type = "resnet", out_features = { "stage3" } },
    "stage3", "the last stage, stage4")
  expect_refused("backbone_config", { model_type = "timm_backbone", backbone = "vgg11" }, "vgg11",
    "resnet50")
  expect_refused("auxiliary_loss", true, "auxiliary_loss")
  expect_refused("d_model", 18, "d_model is 18", "multiple of 4")
end)

test("RT-DETR: the losses of all layers, and padding", function()
  local x = pixels(2, 3, 32, 48)
  local function loss_of(auxiliary_loss, objects)
    local given = { auxiliary_loss = auxiliary_loss }
    for key, value in pairs(real_time) do given[key] = value end
    local model = new(given)
    objects.pixel_values = x
    return model.loss(model.params, objects), model
  end
  local boxes = torch.rand({ 2, 3, 4 }, { generator = torch.Generator(3) }) * 0.4 + 0.2
  local function objects(last) return { boxes = last, labels = torch.tensor {
    { 0, 1, -100 }, { 2, -100, -100 } } } end
  local all, model = loss_of(true, objects(boxes))
  assert((all - loss_of(false, objects(boxes))):item() > 0)
  local other = boxes:clone()
  other:narrow(1, 2, 1):fill_(7)  -- of padding
  expect_close(loss_of(true, objects(other)), all, 0, 0)
  local none = { labels = torch.full({ 2, 1 }, -100, { dtype = "int64" }),
    boxes = torch.zeros { 2, 1, 4 } }
  assert(loss_of(true, none):item() > 0)
  local last, states = model.hidden_states(model.params, { pixel_values = x })
  expect_equal(table.concat(last.shape, ","), "2,4,8")
  expect_equal(#states, 3)
end)

-- The numbers of tests/tools/make_denoising_case.py, whose draws are all 0.75.
test("RT-DETR: a training step finds objects among noisy ones, as in transformers", function()
  local denoising, dir = require "redco.models.images.rt_detr_denoising", "denoising_case"
  local uniform, expected = denoising.uniform, torch.load(dir .. "/expected.safetensors")
  denoising.uniform = function(like) return torch.full_like(like, 0.75) end
  local model = redco.models.from_pretrained(dir)
  local inputs = { labels = expected.labels, boxes = expected.boxes,
    pixel_values = (torch.arange(2 * 3 * 64 * 64):float() % 101 / 50 - 1):view { 2, 3, 64, 64 } }
  local trained = {}
  for name, parameter in pairs(model.params) do
    if not model.family.buffers[name] and not nn.is_running_statistic(name) then
      trained[name] = parameter
    end
  end
  local ok, loss, gradients = pcall(redco.value_and_grad(function(params)
    local all = setmetatable({}, { __index = model.params })
    for name, parameter in pairs(params) do all[name] = parameter end
    return (model.loss(all, inputs, { train = true }))
  end), trained)
  denoising.uniform = uniform
  assert(ok, loss)
  expect_close(loss, expected.loss, 1e-5)
  for name, gradient in pairs(expected) do
    local parameter = name:match "^grad%.(.*)"
    if parameter then
      expect_close(gradients[parameter], gradient, 1e-3, 1e-5 * gradient:norm():item())
    end
  end
  assert((model.loss(model.params, inputs) - loss):abs():item() > 1)  -- not in training
end)

test("RT-DETR: noise of boxes and classes", function()
  local denoising = require "redco.models.images.rt_detr_denoising"
  local c = { num_labels = 10, num_denoising = 100, num_queries = 3, auxiliary_loss = true,
    label_noise_ratio = 0.5, box_noise_scale = 1 }
  local params = { ["model.denoising_class_embed.weight"] = torch.arange(11):float():unsqueeze(1) }
  local labels = torch.tensor { { 4, 7 }, { 2, -100 } }
  local inputs = { labels = labels, boxes = torch.full({ 2, 2, 4 }, 0.4) }
  local found = denoising.queries(c, params, inputs, { train = true, rng = torch.Generator(1) })
  expect_equal(found.n, 200)
  local classes = found.x:squeeze(-1):view { 2, 50, 2, 2 }
  assert(classes[1]:select(-1, 1):eq(10):all():item())  -- padding
  local share = classes:ne(labels:view { 2, 1, 1, 2 }:float())[0]:float():mean():item()
  assert(share > 0.12 and share < 0.33, share)  -- a quarter, of which a tenth is drawn as it was
  local centres, extents = unpack(found.boxes:view { 2, 50, 2, 2, 4 }[0]:chunk(2, -1))
  local offsets = (torch.cat({ centres - extents / 2, centres + extents / 2 }, -1)
    - torch.tensor { 0.2, 0.2, 0.6, 0.6 }):abs() / 0.2
  assert(offsets:select(1, 0):max():item() <= 1.001 and offsets:select(1, 1):min():item() >= 0.999)
  assert(offsets:select(1, 0):mean():item() > 0.4)
  local sees = found.mask
  assert(sees[0]:narrow(0, 0, 4):all():item() and not sees[0][4]:item() and sees[0][202]:item())
  assert(not sees[202]:narrow(0, 0, 200):any():item() and sees[202][200]:item())
  assert(not denoising.queries(c, params, inputs, { train = false }))
end)

test("RT-DETR: what is refused", function()
  local function expect_refused(key, value, ...)
    local given = {}
    for name, old in pairs(real_time) do given[name] = old end
    given[key] = value
    expect_error(function() new(given) end, where, ...)
  end
  expect_refused("backbone_config", { model_type = "resnet" }, "'resnet'", "only 'rt_detr_resnet'")
  expect_refused("encoder_in_channels", { 8, 8 }, "encoder_in_channels are 8, 8", "8, 12")
  expect_refused("num_feature_levels", 3, "num_feature_levels is 3", "expected 2")
  expect_refused("encode_proj_layers", { 2 }, "encode_proj_layers has 2")
  expect_refused("learn_initial_query", true, "learn_initial_query")
  expect_refused("encoder_hidden_dim", 6, "encoder_hidden_dim (6)", "multiple of 4")
  local model = new(real_time)
  expect_error(function() model(model.params, { pixel_values = pixels(1, 3, 40, 32) }) end, where,
    "[6, 4]", "[5, 4]", "multiples of 16")
  expect_error(function() model(model.params, { pixel_values = pixels(1, 1, 32, 32) }) end, where,
    "[batch, 3, height, width]")
end)

local hiera = { hidden_size = 4, patch_kernel_size = { 3, 3 }, patch_stride = { 2, 2 },
  patch_padding = { 1, 1 }, num_query_pool_stages = 2, blocks_per_stage = { 1, 2, 1 },
  embed_dim_per_stage = { 4, 8, 16 }, num_attention_heads_per_stage = { 1, 2, 2 },
  window_size_per_stage = { 4, 2, 2 }, global_attention_blocks = { 2 } }
local function sam_config(image, prompt_encoder, decoder)
  local function changed(given, changes)
    for key, value in pairs(changes or {}) do given[key] = value end
    return given
  end
  return { model_type = "sam2",
    vision_config = changed({ backbone_config = hiera, backbone_channel_list = { 16, 8, 4 },
      backbone_feature_sizes = { { 8, 8 }, { 4, 4 }, { 2, 2 } }, fpn_hidden_size = 8 }, image),
    prompt_encoder_config = changed({ hidden_size = 8, image_size = 16, patch_size = 8 },
      prompt_encoder),
    mask_decoder_config = changed({ hidden_size = 8, mlp_dim = 12, num_attention_heads = 2,
      dynamic_multimask_stability_thresh = 1 }, decoder) }
end

-- A model whose masks differ.
local function new_sam()
  local model, generator = new(sam_config()), torch.Generator(4)
  torch.no_grad(function()
    for _, leaf in pairs(model.params) do
      if leaf:dim() > 1 then nn.init.normal_(leaf, { std = 0.4, generator = generator }) end
    end
  end)
  return model
end

test("SAM 2: an image read once, points without labels, and one mask", function()
  local model, x = new_sam(), pixels(2, 3, 16, 16)
  local points = torch.rand({ 2, 3, 2, 2 }, { generator = torch.Generator(5) }) * 16
  local masks, scores, is_there = model(model.params, { pixel_values = x, input_points = points })
  expect_equal(table.concat(masks.shape, ","), "2,3,3,8,8")
  expect_equal(table.concat(scores.shape, ","), "2,3,3")
  expect_equal(table.concat(is_there.shape, ","), "2,3,1")
  local images = model.get_image_embeddings(model.params, { pixel_values = x })
  local labels = torch.ones({ 2, 3, 2 }, { dtype = "int64" })
  local again = model(model.params, { image_embeddings = images, input_points = points,
    input_labels = labels })
  expect_close(again, masks, 1e-5, 1e-5)
  -- A mask that is not stable gives way to the best of the others, but not in training.
  local inputs = { image_embeddings = images, input_points = points, multimask_output = false }
  local one, score = model(model.params, inputs)
  expect_equal(table.concat(one.shape, ","), "2,3,1,8,8")
  expect_close(score:squeeze(-1), scores:amax { -1 }, 1e-5, 1e-5)
  local first = model(model.params, inputs, { train = true })
  assert((first - one):abs():max():item() > 1e-3)
  -- Padding is no point, and without anything there is one object.
  labels:select(2, 1):fill_(-10)
  local _, padded = model(model.params, { image_embeddings = images, input_points = points,
    input_labels = labels })
  assert((padded - scores):abs():max():item() > 1e-6)
  expect_equal(model(model.params, { pixel_values = x }):size(1), 1)
  local last, stages = model.hidden_states(model.params, { pixel_values = x })
  expect_equal(table.concat(last.shape, ",") .. " " .. #stages, "2,2,2,16 3")
end)

test("SAM 2: folders of models of videos open without their memory", function()
  local model, dir = new_sam(), os.tmpname()
  os.remove(dir)
  model.save_pretrained(dir)
  local weights = torch.load(dir .. "/model.safetensors")
  local second = "prompt_encoder.shared_embedding.positional_embedding"
  expect_close(weights[second], model.params["shared_image_embedding.positional_embedding"], 0, 0)
  weights[second], weights["memory_encoder.projection.weight"] = nil, torch.ones { 2 }
  torch.save(weights, dir .. "/model.safetensors")
  local file = assert(io.open(dir .. "/config.json"))
  local text = file:read("*a"):gsub('"sam2"', '"sam2_video", "num_maskmem": 7')
  file:close()
  file = assert(io.open(dir .. "/config.json", "w"))
  file:write(text)
  file:close()
  local opened = redco.models.from_pretrained(dir)
  expect_equal(opened.family.architecture, "Sam2Model")
  local inputs = { pixel_values = pixels(1, 3, 16, 16) }
  expect_close(opened(opened.params, inputs), model(model.params, inputs), 0, 0)
  os.execute(("rm -r '%s'"):format(dir))
end)

test("SAM 2: points and boxes of an image of another size", function()
  local model = new(sam_config())
  local inputs = { pixel_values = pixels(2, 3, 16, 16), input_boxes = torch.tensor
    { { { 1, 2, 9, 8 } }, { { 0, 4, 16, 12 } } }, input_points = torch.tensor
    { { { { 3, 4 }, { 8, 8 } } }, { { { 5, 1 }, { 0, 0 } } } },
    input_labels = torch.tensor { { { 1, 0 } }, { { 1, -10 } } } }
  local expected = { model(model.params, inputs) }
  local sizes = torch.tensor { { 32, 64 }, { 16, 8 } }  -- heights and widths
  local scale = torch.tensor { { 4, 2 }, { 0.5, 1 } }
  inputs.original_sizes = sizes
  inputs.input_points = inputs.input_points * scale:view { 2, 1, 1, 2 }
  inputs.input_boxes = inputs.input_boxes * torch.cat({ scale, scale }, -1):view { 2, 1, 4 }
  for i, found in ipairs { model(model.params, inputs) } do
    expect_close(found, expected[i], 1e-5, 1e-6)
  end
  inputs.original_sizes = sizes:narrow(0, 0, 1)
  expect_error(function() model(model.params, inputs) end, where, "original_sizes", "1 images")
end)

test("SAM 2: what is refused", function()
  local function expect_refused(config, ...)
    expect_error(function() new(config) end, where, ...)
  end
  local function other_hiera(key, value)
    local own = {}
    for name, old in pairs(hiera) do own[name] = old end
    own[key] = value
    return sam_config { backbone_config = own }
  end
  expect_refused(sam_config { num_feature_levels = 2 }, "num_feature_levels is 2", "expected 3")
  expect_refused(sam_config { backbone_channel_list = { 4, 8, 16 } }, "backbone_channel_list",
    "4, 8, 16", "opposite order")
  expect_refused(sam_config { backbone_config = { model_type = "swin" } }, "'swin'", "only")
  expect_refused(sam_config({}, { hidden_size = 16 }), "prompt_encoder_config", "fpn_hidden_size")
  expect_refused(sam_config({}, {}, { num_attention_heads = 3 }), "num_attention_heads = 3")
  expect_refused(other_hiera("embed_dim_per_stage", { 4, 8 }), "embed_dim_per_stage has 2 numbers",
    "as many as blocks_per_stage, 3")
  expect_refused(other_hiera("query_stride", { 2, 1 }), "query_stride is 2, 1")
  expect_refused(other_hiera("hidden_size", 8), "hidden_size is 8", "4")
  local model, x = new(sam_config()), pixels(2, 3, 16, 16)
  local function expect_wrong(inputs, ...)
    expect_error(function() model(model.params, inputs) end, where, ...)
  end
  local points = torch.zeros { 2, 1, 3, 2 }
  expect_wrong({ pixel_values = pixels(2, 3, 32, 16) }, "16 x 8", "expected 8 x 8", "16 x 16")
  expect_wrong({ pixel_values = pixels(2, 3, 20, 16) }, "10 x 8 places", "multiples")
  expect_wrong({}, "pixel_values are missing")
  expect_wrong({ pixel_values = x, image_embeddings = {} }, "expected one of them")
  expect_wrong({ image_embeddings = {} }, "get_image_embeddings")
  expect_wrong({ pixel_values = x, input_points = points[0] }, "input_points",
    "[batch, objects, points, 2]", "[1, 3, 2]")
  expect_wrong({ pixel_values = x, input_points = points:narrow(0, 0, 1) }, "of 1 images")
  expect_wrong({ pixel_values = x, input_labels = torch.zeros { 2, 1, 3 } }, "input_points")
  expect_wrong({ pixel_values = x, input_points = points,
    input_boxes = torch.zeros { 2, 2, 4 } }, "1 objects", "input_boxes of 2")
  expect_wrong({ pixel_values = x, target_embedding = x }, "target_embedding is not supported")
end)

testing.finish()
