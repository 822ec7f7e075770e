-- Models that read images of any size in their texts: what tests/peers does not compare.
local redco = require "redco"
local testing = require "testing"
local tiny = require "tiny_models"

local torch = redco.torch
local test, expect_equal, expect_error = testing.test, testing.expect_equal, testing.expect_error
local expect_close = testing.expect_close

local function batch_of(expected)
  return { input_ids = expected.input_ids, attention_mask = expected.attention_mask,
    pixel_values = expected.pixel_values, image_grid_thw = expected.image_grid_thw }
end

test("logits and tokens of reference cases", function()
  for _, name in ipairs { "qwen2_5_vl", "qwen3_vl" } do
    local dir = "../cases/" .. name
    local expected, model = torch.load(dir .. "/expected.safetensors"),
      redco.models.from_pretrained(dir)
    local batch = batch_of(expected)
    expect_close(model(model.params, batch):select(1, -1), expected.logits, 1e-4, 1e-4)
    local tokens = model.generate(model.params, batch, { max_new_tokens = 6 })
    expect_equal(tokens:equal(expected.tokens), true)
  end
end)

test("the processor of a reference case", function()
  local dir = "../cases/qwen2_5_vl"
  local expected, process = torch.load(dir .. "/expected.safetensors"),
    redco.models.processor(dir)
  local word = redco.Tokenizer.from_pretrained(dir):convert_ids_to_tokens(767)
  local texts = { word .. "<image>a red heart " .. word .. "<image>", "bone" }
  local batch = process(texts, { expected.image_0, expected.image_1 }, { padding = true })
  for _, name in ipairs { "input_ids", "attention_mask" } do
    expect_equal(batch[name]:equal(expected[name]), true)
  end
  -- Each row has its images, the second none.
  expect_equal(batch.image_grid_thw[0]:equal(expected.image_grid_thw), true)
  expect_equal(batch.image_grid_thw[1]:ne(0):any():item(), false)
  local pixels = batch.pixel_values[0]
  expect_close(torch.cat({ pixels[0], pixels[1]:narrow(0, 0, 8) }, 0), expected.pixel_values,
    0, 1e-6)
  expect_equal(batch.pixel_values[1]:ne(0):any():item(), false)
  local model = redco.models.from_pretrained(dir)
  expect_close(model(model.params, batch):select(1, -1), expected.logits, 1e-4, 1e-4)
  expect_error(function() process(texts, { torch.zeros({ 3, 1, 300 }, { dtype = "uint8" }) }) end,
    "2 times for 1 images")
end)

local function rows(list) return torch.tensor(list, { dtype = "int64" }) end

local names = { "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe" }

-- Two texts, of two images and of one, with 2, 6 and 1 features.
local ids = rows {
  { 3, 31, 31, 4, 31, 31, 31, 31, 31, 31, 5 },
  { 6, 7, 31, 8, 9, 10, 11, 12, 13, 14, 15 },
}
local grids = rows { { 1, 4, 2 }, { 1, 4, 6 }, { 1, 2, 2 } }

local function some_patches() return torch.randn({ 36, 12 }, { generator = torch.Generator(2) }) end

-- Patches [n, most, size] of images, with zeros behind them.
local function by_image(patches, counts)
  local list, first = {}, 0
  for i, count in ipairs(counts) do
    list[i] = torch.constant_pad_nd(patches:narrow(0, first, count), { 0, 0, 0, 24 - count })
    first = first + count
  end
  return torch.stack(list)
end

test("patches of all images, by images and by rows", function()
  for _, name in ipairs(names) do
    local model, patches = tiny.new(name), some_patches()
    local function logits(pixels, grid)
      return model(model.params, { input_ids = ids, pixel_values = pixels, image_grid_thw = grid })
    end
    local expected = logits(patches, grids)
    local images = by_image(patches, { 8, 24, 4 })
    expect_close(logits(images, grids), expected, 1e-5, 1e-5)
    local none = torch.zeros { 1, 24, 12 }
    local in_rows = logits(torch.cat({ images, none }, 0):unflatten(0, { 2, 2 }),
      torch.cat({ grids, rows { { 0, 0, 0 } } }, 0):unflatten(0, { 2, 2 }))
    expect_close(in_rows, expected, 1e-5, 1e-5)
    -- A row alone, with padding on the left.
    local row = torch.cat({ rows { { 0, 0 } }, ids:narrow(0, 1, 1) }, 1)
    local mask = torch.ones_like(row)
    mask:narrow(1, 0, 2):fill_(0)
    local alone = model(model.params, { input_ids = row, attention_mask = mask,
      pixel_values = patches:narrow(0, 32, 4), image_grid_thw = grids:narrow(0, 2, 1) })
    expect_close(alone:narrow(1, 2, 11), expected:narrow(0, 1, 1), 1e-4, 1e-5)
  end
end)

test("a cache keeps how far the positions are ahead of the tokens", function()
  for _, name in ipairs(names) do
    local model, patches = tiny.new(name), some_patches()
    local row = ids:narrow(0, 0, 1)
    local expected = model(model.params, { input_ids = row, pixel_values = patches:narrow(0, 0, 32),
      image_grid_thw = grids:narrow(0, 0, 2) })
    local cache = redco.models.new_cache()
    local function step(first, n, image, from, count)
      return model(model.params, { input_ids = row:narrow(1, first, n),
        pixel_values = image and patches:narrow(0, from, count),
        image_grid_thw = image and grids:narrow(0, image, 1) }, { cache = cache })
    end
    expect_close(step(0, 3, 0, 0, 8), expected:narrow(1, 0, 3), 1e-4, 1e-5)
    expect_close(step(3, 1), expected:narrow(1, 3, 1), 1e-4, 1e-5)
    expect_close(step(4, 6, 1, 8, 24), expected:narrow(1, 4, 6), 1e-4, 1e-5)
    expect_close(step(10, 1), expected:narrow(1, 10, 1), 1e-4, 1e-5)
  end
end)

test("a window of patches, and deepstack's layers", function()
  local function features(changes)
    local config = tiny.config(changes.name)
    config.vision_config = tiny.merged(config.vision_config, changes)
    config.vision_config.name = nil
    local model = redco.models.from_config(config, { generator = torch.Generator(1) })
    return model.hidden_states(model.params, { input_ids = ids:narrow(0, 0, 1),
      pixel_values = some_patches():narrow(0, 0, 32), image_grid_thw = grids:narrow(0, 0, 2) })
  end
  local function differ(name, one, other)
    one, other = features(tiny.merged({ name = name }, one)),
      features(tiny.merged({ name = name }, other))
    assert((one - other):abs():max():item() > 1e-6, name)
  end
  differ("qwen2_5_vl", { window_size = 4 }, { window_size = 8 })
  differ("qwen2_5_vl", { fullatt_block_indexes = { 0 } }, { fullatt_block_indexes = { 0, 1 } })
  differ("qwen3_vl", { deepstack_visual_indexes = { 0, 1 } },
    { deepstack_visual_indexes = { 1, 0 } })
  -- A window as large as the image is the whole.
  expect_close(features { name = "qwen2_5_vl", window_size = 12 },
    features { name = "qwen2_5_vl", fullatt_block_indexes = { 0, 1 } }, 1e-5, 1e-5)
end)

test("recomputed layers have the same gradients", function()
  for _, name in ipairs { "qwen2_5_vl", "qwen3_vl" } do
    local model = tiny.new(name)
    local inputs = tiny.inputs(name, model)
    local function gradients(recompute)
      local own = redco.models.from_config(model.config, { recompute = recompute })
      return redco.value_and_grad(function(params)
        return (own.loss(params, inputs))
      end)(model.params)
    end
    local loss, expected = gradients "none"
    local again, found = gradients "blocks"
    expect_close(again, loss, 1e-6, 1e-6)
    for key, gradient in pairs(expected) do expect_close(found[key], gradient, 1e-5, 1e-6) end
  end
end)

test("adapters of the text, of the tower, and of all", function()
  local model = tiny.new "qwen2_5_vl"
  local inputs = tiny.inputs("qwen2_5_vl", model)
  local function count(targets)
    local params, n = redco.lora.add(model.params, { target_modules = targets, r = 2 }), 0
    for key in pairs(params) do n = n + (key:find "lora_A" and 1 or 0) end
    local trainer = redco.Trainer {
      deployer = redco.Deployer { seed = 1, verbose = false }, params = params,
      optimizer = redco.lora.freeze_base(redco.optim.adamw { learning_rate = 0.05 }, params),
      collate_fn = function() return inputs end, loss_fn = model.loss_fn,
    }
    local before = model.loss(params, inputs):item()
    for _ = 1, 5 do trainer:train { examples = { 1 }, per_device_batch_size = 1 } end
    assert(model.loss(trainer.params, inputs):item() < before)
    return n
  end
  expect_equal(count { "q_proj", "v_proj" }, 4)
  expect_equal(count "model%.visual%.merger%.mlp.*", 2)
  expect_equal(count { "qkv", "q_proj" }, 4)
end)

test("the keys of the text model may be beside vision_config", function()
  for _, name in ipairs { "qwen2_vl", "qwen2_5_vl" } do
    local nested = tiny.config(name)
    local flat = tiny.merged(nested, nested.text_config)
    local both = tiny.merged(flat, { text_config = tiny.merged(nested.text_config,
      { intermediate_size = 20 }) })
    flat.text_config = nil
    local model = redco.models.from_config(flat)
    expect_equal(model.config.text_config.intermediate_size, 24)
    expect_equal(model.config.intermediate_size, nil)
    expect_equal(redco.models.from_config(both).config.text_config.intermediate_size, 20)
  end
end)

test("a folder opens whole, or as its text model by a task", function()
  local dir = testing.folder() .. "/whole"
  for name, alone in pairs { qwen2_vl = "qwen2", qwen2_5_vl = "qwen2", qwen3_vl = "qwen3" } do
    local model = tiny.new(name)
    model.save_pretrained(dir)
    local inputs = { input_ids = rows { { 3, 4, 5 } } }
    local expected = model(model.params, inputs)
    local again = redco.models.from_pretrained(dir)
    expect_close(again(again.params, inputs), expected, 0, 0)
    local text = redco.models.from_pretrained(dir, { task = "causal_lm" })
    expect_equal(text.config.model_type, alone)
    expect_close(text(text.params, inputs), expected, 0, 0)
    os.remove(dir .. "/model.safetensors")
  end
end)

test("experts' matrices [n, out, in], as version 5 of transformers writes them", function()
  local dir = testing.folder() .. "/turned"
  local model = tiny.new "qwen3_vl_moe"
  model.save_pretrained(dir)
  local turned = {}
  for key, value in pairs(model.params) do
    turned[key] = key:find "%.experts%." and value:detach():transpose(1, 2):contiguous() or value
  end
  os.remove(dir .. "/model.safetensors")
  torch.save(turned, dir .. "/model.safetensors")
  local again = redco.models.from_pretrained(dir)
  local inputs = tiny.inputs("qwen3_vl_moe", model)
  expect_close(again(again.params, inputs), model(model.params, inputs), 1e-5, 1e-5)
end)

test("what does not fit is named", function()
  local model, patches = tiny.new "qwen2_5_vl", some_patches()
  local function refused(changes, ...)
    local inputs = tiny.merged({ input_ids = ids, pixel_values = patches, image_grid_thw = grids },
      changes)
    expect_error(function() model(model.params, inputs) end, ...)
  end
  local one = grids:narrow(0, 0, 1)
  refused({ image_grid_thw = rows { { 2, 4, 2 } } }, "2 moments", "films are not supported")
  refused({ image_grid_thw = rows { { 1, 3, 12 } } }, "no multiples of spatial_merge_size, 2")
  refused({ image_grid_thw = one }, "image_grid_thw has 8 patches, but pixel_values have 36")
  refused({ image_grid_thw = one, pixel_values = patches:narrow(0, 0, 8) },
    "input_ids have 9 image tokens")
  refused({ pixel_values = patches:narrow(1, 0, 10) }, "expected [images, patches, 12]")
  refused({ image_grid_thw = grids:unsqueeze(0) }, "do not fit image_grid_thw of [1, 3, 3]")
  expect_error(function()
    model(model.params, { input_ids = ids, pixel_values = patches })
  end, "inputs.image_grid_thw is missing")

  local function unknown(name, part, changes, ...)
    local config = tiny.config(name)
    config[part] = tiny.merged(config[part], changes)
    expect_error(function() redco.models.from_config(config) end, ...)
  end
  unknown("qwen2_5_vl", "vision_config", { window_size = 3 }, "window_size is 3", "at least")
  unknown("qwen2_5_vl", "vision_config", { num_heads = 8 }, "2 elements, expected a multiple of 4")
  unknown("qwen3_vl", "vision_config", { deepstack_visual_indexes = { 2 } }, "below depth, 2")
  unknown("qwen3_5", "vision_config", { deepstack_visual_indexes = { 1 } },
    "deepstack_visual_indexes have 1, expected no numbers")
  unknown("qwen2_vl", "text_config", { rope_scaling = { mrope_section = { 2, 1, 2 } } },
    "mrope_section has 5 pairs, expected those of a head, 4")
end)

testing.finish()
