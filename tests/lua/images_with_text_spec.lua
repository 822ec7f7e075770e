-- Models that read images with texts: what tests/peers does not compare with transformers.
local redco = require "redco"
local testing = require "testing"
local tiny = require "tiny_models"

local torch = redco.torch
local test, expect_equal, expect_error = testing.test, testing.expect_equal, testing.expect_error
local expect_close = testing.expect_close
local folder = "../cases/llava"
local texts = { "<image>a red heart", "bone" }

test("the processor, the logits and the tokens of a reference case", function()
  local expected = torch.load(folder .. "/expected.safetensors")
  local process = redco.models.processor(folder)
  local batch = process(texts, { expected.image }, { padding = true })
  for _, name in ipairs { "input_ids", "attention_mask" } do
    expect_equal(batch[name]:equal(expected[name]), true)
  end
  expect_close(batch.pixel_values[0], expected.pixel_values, 0, 1e-6)
  expect_equal(batch.pixel_values[1]:abs():max():item(), 0)
  local model = redco.models.from_pretrained(folder)
  local logits = model(model.params, batch)
  expect_close(logits:narrow(0, 0, 1):select(1, -1), expected.logits, 1e-4, 1e-4)
  local tokens = model.generate(model.params, batch, { max_new_tokens = 6 })
  expect_equal(tokens:equal(expected.tokens), true)
end)

test("the processor counts images", function()
  local process, image = redco.models.processor(folder), torch.zeros({ 3, 9, 9 },
    { dtype = "uint8" })
  expect_error(function() process(texts, { image, image }) end, "'<image>' 1 times for 2 images")
  expect_equal(process("bone").pixel_values, nil)
  local two = process({ "<image> <image>", "<image><image>a" }, { { image, image },
    { image, image } }, { padding = true })
  expect_equal(table.concat(two.pixel_values.shape, " "), "2 2 3 12 12")
  local uneven = process({ "<image> <image>", "<image>" }, { image, image, image },
    { padding = true })
  expect_equal(table.concat(uneven.pixel_values.shape, " "), "2 2 3 12 12")
  expect_equal(uneven.pixel_values[1][1]:abs():max():item(), 0)
  expect_error(function() redco.models.processor "../cases/gpt2" end, "gpt2 reads no images")
end)

test("what stands for the tiles of Llama 4", function()
  local family = require "redco.models.families.llama4"
  local word, text_of = family.placeholder(redco.models.from_config(tiny.config "llama4").config,
    function(id) return id == 31 and "p" end)
  expect_equal(word, "<|image|>")
  expect_equal(text_of { rows = 1, columns = 1, n_tiles = 1 },
    "<|image_start|><|image|>pppp<|image_end|>")
  local row = "pppp<|tile_x_separator|>pppp<|tile_y_separator|>"
  expect_equal(text_of { rows = 3, columns = 2, n_tiles = 7 },
    "<|image_start|>" .. row:rep(3) .. "<|image|>pppp<|image_end|>")
end)

test("chat templates with images", function()
  local tokenizer = redco.Tokenizer.from_pretrained(folder)
  local text = tokenizer:apply_chat_template({
    { role = "user", content = { { type = "image" }, { type = "text", text = "bone" } } },
  }, { tokenize = false })
  expect_equal(text, "user: <image>bone")
end)

local function rows(list) return torch.tensor(list, { dtype = "int64" }) end

-- A tiny model with images of four features, whose token is 31.
local function new(name) return tiny.new(name) end

local with_equal_images = { "llava", "gemma3", "idefics3", "internvl", "llama4", "mistral3",
  "paligemma" }
local all = { "llava_next", "llava_onevision", "smolvlm", unpack(with_equal_images) }

test("images stand in the order of their tokens, however they are spread", function()
  for _, name in ipairs(with_equal_images) do
    local model = new(name)
    local pixels = torch.randn { 3, 3, 8, 8 }
    local image, t = { 31, 31, 31, 31 }, {}
    local function row(...)
      local ids = {}
      for _, part in ipairs { ... } do
        for _, id in ipairs(type(part) == "table" and part or { part }) do ids[#ids + 1] = id end
      end
      return ids
    end
    t.two, t.one = row(3, image, 4, image, 5), row(6, image, 7, 8, 9, 10, 11, 12)
    local both = model(model.params, { input_ids = rows { t.two, t.one }, pixel_values = pixels })
    local function alone(ids, first, n)
      return model(model.params, { input_ids = rows { ids },
        pixel_values = pixels:narrow(0, first, n) })
    end
    expect_close(both:narrow(0, 0, 1), alone(t.two, 0, 2), 1e-5, 1e-5)
    expect_close(both:narrow(0, 1, 1), alone(t.one, 2, 1), 1e-5, 1e-5)
    expect_close(model(model.params, { input_ids = rows { t.two },
      pixel_values = pixels:narrow(0, 0, 2):unsqueeze(0) }), alone(t.two, 0, 2), 1e-5, 1e-5)
    for _, n in ipairs { 1, 2 } do
      expect_error(function()
        model(model.params, { input_ids = rows { t.one }, pixel_values = pixels:narrow(0, 1, n)
          :repeat_interleave(2, 0) })
      end, name .. ": input_ids have 4 image tokens", ("expected %d for %d images"):format(n * 8,
        n * 2))
    end
    -- Padding on the left changes nothing.
    local padded = row(0, 0, t.one)
    local mask = torch.ones({ 1, 13 }, { dtype = "int64" })
    mask:narrow(1, 0, 2):fill_(0)
    local y = model(model.params, { input_ids = rows { padded }, attention_mask = mask,
      pixel_values = pixels:narrow(0, 2, 1) })
    if name ~= "llama4" then  -- whose chunks and scales count it
      expect_close(y:narrow(1, 2, 11), alone(t.one, 2, 1), 1e-4, 1e-5)
    end
  end
end)

test("the tokens of an image of Gemma 3 see each other, and only those", function()
  local model = new "gemma3"
  local generator = torch.Generator(2)
  local pixels = torch.randn({ 2, 3, 8, 8 }, { generator = generator })
  local ids = rows { { 3, 31, 31, 31, 31, 4, 31, 31, 31, 31, 5 } }
  local states = model.hidden_states(model.params, { input_ids = ids, pixel_values = pixels })
  -- A change of the second image does not reach the first, nor what stands between them.
  local other = pixels:clone()
  other[1]:add_(1)
  local changed = model.hidden_states(model.params, { input_ids = ids, pixel_values = other })
  expect_close(changed:narrow(1, 0, 6), states:narrow(1, 0, 6), 0, 0)
  assert((changed:select(1, 6) - states:select(1, 6)):abs():max():item() > 1e-3)
  -- With a cache, as in generation.
  local cache = redco.models.new_cache()
  local function step(first, n, given)
    return model.hidden_states(model.params, { input_ids = ids:narrow(1, first, n),
      pixel_values = given }, { cache = cache })
  end
  expect_close(step(0, 5, pixels:narrow(0, 0, 1)), states:narrow(1, 0, 5), 1e-5, 1e-5)
  expect_close(step(5, 5, pixels:narrow(0, 1, 1)), states:narrow(1, 5, 5), 1e-5, 1e-5)
  expect_close(step(10, 1), states:narrow(1, 10, 1), 1e-5, 1e-5)
end)

test("an image token may be beyond the vocabulary", function()
  local config = tiny.config "gemma3"
  config.image_token_index = 32
  local model = redco.models.from_config(config)
  local ids = rows { { 3, 32, 32, 32, 32, 4 } }
  local y = model(model.params, { input_ids = ids, pixel_values = torch.randn { 1, 3, 8, 8 } })
  expect_equal(y:size(2), 32)
end)

test("a folder with images opens whole, or as its text model by a task", function()
  local dir = testing.folder() .. "/whole"
  for _, name in ipairs(all) do
    local model = new(name)
    model.save_pretrained(dir)
    local weights = torch.load(dir .. "/model.safetensors")
    assert(weights["language_model.model.norm.weight"] or weights["model.text_model.norm.weight"])
    local again = redco.models.from_pretrained(dir)
    local inputs = { input_ids = rows { { 3, 4, 5 } } }
    local expected = model(model.params, inputs)
    expect_close(again(again.params, inputs), expected, 0, 0)
    local text = redco.models.from_pretrained(dir, { task = "causal_lm" })
    expect_equal(text.config.model_type, model.config.text_config.model_type)
    if name ~= "paligemma" then  -- whose prompts see what is behind them
      expect_close(text(text.params, inputs), expected, 0, 0)
    end
    -- The names of version 5 of transformers.
    local renamed = {}
    for key, value in pairs(model.params) do
      renamed[(key:gsub("vision_tower%.vision_model%.", "vision_tower."))] = value
    end
    os.remove(dir .. "/model.safetensors")
    torch.save(renamed, dir .. "/model.safetensors")
    again = redco.models.from_pretrained(dir)
    expect_close(again(again.params, inputs), expected, 0, 0)
    os.remove(dir .. "/model.safetensors")
  end
end)

test("LLaVA with Pixtral's model of images: images of different sizes are as they are alone",
function()
  local vision = tiny.merged(tiny.config("mistral3").vision_config, { model_type = "pixtral" })
  local config = tiny.merged(tiny.config "llava", { vision_feature_layer = -1,
    vision_feature_select_strategy = "full", vision_config = vision })
  local model = redco.models.from_config(config)
  local pixels = torch.randn { 2, 3, 4, 6 }
  pixels[0]:narrow(1, 2, 2):zero_()
  pixels[1]:narrow(2, 2, 4):zero_()
  local sizes = torch.tensor({ { 2, 6 }, { 4, 2 } }, { dtype = "int64" })
  local function logits(ids, ...)
    return model(model.params, { input_ids = rows { ids }, pixel_values = ..., image_sizes =
      select(2, ...) })
  end
  local both = logits({ 3, 31, 31, 31, 4, 31, 31, 5 }, pixels, sizes)
  local first = logits({ 3, 31, 31, 31, 4 }, pixels:narrow(0, 0, 1):narrow(2, 0, 2))
  expect_close(both:narrow(1, 0, 5), first, 1e-5, 1e-5)
  local turned = logits({ 3, 31, 31, 5 }, pixels:narrow(0, 1, 1):narrow(3, 0, 2))
  local order = torch.tensor({ 1, 0 }, { dtype = "int64" })
  expect_close(logits({ 3, 31, 31, 5, 31, 31, 31 }, pixels:index_select(0, order),
    sizes:index_select(0, order)):narrow(1, 0, 4), turned, 1e-5, 1e-5)
  local dir = testing.folder() .. "/pixtral"
  model.save_pretrained(dir)
  assert(torch.load(dir .. "/model.safetensors")["vision_tower.patch_conv.weight"])
  local again = redco.models.from_pretrained(dir)
  expect_close(again(again.params, { input_ids = rows { { 3, 31, 31, 31, 4 } },
    pixel_values = pixels:narrow(0, 0, 1):narrow(2, 0, 2) }), first, 0, 0)
  config.vision_feature_select_strategy = "default"
  expect_error(function() redco.models.from_config(config) end,
    "expected 'full' for Pixtral's images")
end)

-- Tokens of the whole image (4), and of each row of its grid of features and the row's end.
test("tiles of LLaVA-NeXT: images of different sizes are as they are alone", function()
  for _, name in ipairs { "llava_next", "llava_onevision" } do
    local config = tiny.config(name)
    config.image_grid_pinpoints = { { 8, 16 }, { 16, 16 } }
    config.vision_aspect_ratio = name == "llava_onevision" and "anyres_max_1" or nil
    local model = redco.models.from_config(config)
    local pixels = torch.randn { 2, 5, 3, 8, 8 }
    pixels[0]:narrow(0, 3, 2):zero_()
    local sizes = torch.tensor({ { 8, 16 }, { 20, 10 } }, { dtype = "int64" })
    -- 2 x 4 features, and 4 x 2 of 4 x 4; of 8 features more than 4 are scaled to 1 x 2 and 2 x 1.
    local counts = name == "llava_next" and { 4 + 2 * 5, 4 + 4 * 3 } or { 4 + 1 * 3, 4 + 2 * 2 }
    local function row(n) return rows { { 3, unpack(torch.full({ n }, 31):tolist()) } } end
    local function alone(i)
      return model(model.params, {
        input_ids = torch.cat({ row(counts[i + 1]), rows { { 4, 5 } } }, 1),
        pixel_values = pixels:narrow(0, i, 1), image_sizes = sizes:narrow(0, i, 1) })
    end
    local most = math.max(unpack(counts))
    local both = {}
    for i, n in ipairs(counts) do
      both[i] = torch.cat({ row(n), rows { { 4, 5 } }, torch.zeros({ 1, most - n },
        { dtype = "int64" }) }, 1)
    end
    local inputs = { input_ids = torch.cat(both, 0), pixel_values = pixels, image_sizes = sizes }
    local logits = model(model.params, inputs)
    for i, n in ipairs(counts) do
      expect_close(logits:narrow(0, i - 1, 1):narrow(1, 0, n + 3), alone(i - 1), 1e-5, 1e-5)
    end
    -- Each row with its own images, and zeros in place of a second one.
    inputs.pixel_values = torch.stack({ pixels, torch.zeros_like(pixels) }, 1)
    inputs.image_sizes = torch.stack({ sizes, torch.zeros_like(sizes) }, 1)
    expect_close(model(model.params, inputs), logits, 1e-5, 1e-5)
    inputs.input_ids = inputs.input_ids:flip { 0 }
    expect_error(function() model(model.params, inputs) end, name .. ": row 1 of input_ids has "
      .. counts[2] .. " image tokens, expected " .. counts[1])
    inputs.image_sizes = nil
    expect_error(function() model(model.params, inputs) end, "image_sizes are missing")
  end
end)

test("adapters of the text model train beside images", function()
  local model = new "llava"
  local inputs = tiny.inputs("llava", model)
  local params = redco.lora.add(model.params, { target_modules = { "q_proj", "v_proj" }, r = 2 })
  assert(params["model.language_model.layers.0.self_attn.q_proj.lora_A.weight"])
  local trainer = redco.Trainer {
    deployer = redco.Deployer { seed = 1, verbose = false }, params = params,
    optimizer = redco.lora.freeze_base(redco.optim.adamw { learning_rate = 0.05 }, params),
    collate_fn = function() return inputs end, loss_fn = model.loss_fn,
  }
  local before = model.loss(params, inputs):item()
  for _ = 1, 5 do trainer:train { examples = { 1 }, per_device_batch_size = 1 } end
  assert(model.loss(trainer.params, inputs):item() < before)
end)

test("what does not fit is named", function()
  local function refused(name, changes, ...)
    local config = tiny.merged(tiny.config(name), changes)
    expect_error(function() redco.models.from_config(config) end, ...)
  end
  refused("llava", { vision_feature_layer = 7 }, "vision_feature_layer is 7", "from -3 to 2")
  refused("llava", { vision_feature_select_strategy = "none" }, "'none'")
  refused("llava", { text_config = { model_type = "gpt2" } }, "model_type 'gpt2'")
  refused("llava", { vision_config = { model_type = "llama" } }, "model_type 'llama'")
  refused("gemma3", { mm_tokens_per_image = 3 }, "mm_tokens_per_image is 3")
  refused("idefics3", { scale_factor = 3 }, "scale_factor is 3", "4 patches")
  refused("internvl", { downsample_ratio = 0.3 }, "downsample_ratio is 0.3")
  local image = tiny.config("llama4").vision_config
  for key, wrong in pairs { pixel_shuffle_ratio = 0.4, intermediate_size = 24,
    projector_input_dim = 8, vision_output_dim = 8, num_attention_heads = 8 } do
    refused("llama4", { vision_config = tiny.merged(image, { [key] = wrong }) },
      key == "num_attention_heads" and "heads have 2 elements" or ("%s is %s"):format(key, wrong))
  end
  refused("llama4", { vision_config = tiny.merged(image, { rope_parameters = {
    rope_type = "linear", factor = 2 } }) }, "rope_type 'linear'")
  refused("paligemma", { projection_dim = 8 }, "projection_dim is 8")
  refused("mistral3", { vision_feature_layer = { -1, -2 } }, "expected one number")
  refused("llava_next", { image_grid_pinpoints = { { 8, 9 } } }, "multiples of image_size, 8")
  refused("llava_next", { vision_feature_select_strategy = "full" }, "no square of features")
  refused("llava_onevision", { vision_aspect_ratio = "anyres" }, "'anyres'", "anyres_max_9")
end)

testing.finish()
