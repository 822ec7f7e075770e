-- CLIP, SigLIP and ViT: what the reference cases and tests/peers do not compare with transformers.
local cases = require "model_cases"
local redco = require "redco"
local testing = require "testing"

local torch = redco.torch
local test, expect_equal, expect_error = testing.test, testing.expect_equal, testing.expect_error
local expect_close = testing.expect_close

local function open(name) return cases.open(cases.folders[1], name) end

local function inputs_of(name) return cases.forward_inputs(open(name)) end

local text = { vocab_size = 11, hidden_size = 8, intermediate_size = 12, num_hidden_layers = 1,
  num_attention_heads = 2, max_position_embeddings = 6, eos_token_id = 9, pad_token_id = 9 }
local image = { hidden_size = 8, intermediate_size = 12, num_hidden_layers = 2,
  num_attention_heads = 2, image_size = 6, patch_size = 3 }

local function with(config, changes)
  local copy = {}
  for key, value in pairs(config) do copy[key] = value end
  for key, value in pairs(changes or {}) do copy[key] = value end
  return copy
end

local function new(model_type, changes, task)
  local config = { model_type = model_type }
  if model_type == "clip" or model_type == "siglip" then
    config.text_config, config.vision_config = with(text), with(image)
  else
    config = with(model_type:find "text" and text or image, config)
  end
  return redco.models.from_config(with(config, changes),
    { generator = torch.Generator(1), task = task })
end

test("features, from the parts and from the whole", function()
  local whole, inputs = redco.models.from_pretrained "../cases/clip", inputs_of "clip"
  local features = whole.get_text_features(whole.params, inputs)
  local images = whole.get_image_features(whole.params, { pixel_values = inputs.pixel_values })
  expect_equal(table.concat(features.shape, " "), "4 20")
  local function unit(x) return x / x:square():sum({ -1 }, true):sqrt() end
  expect_close(whole(whole.params, inputs), unit(images):matmul(unit(features):t())
    * whole.params.logit_scale:exp(), 1e-5, 1e-5)
  -- The text model alone has the same features.
  local folder = testing.folder() .. "/text"
  local config = with(whole.config.text_config, { projection_dim = 20 })
  local alone = redco.models.from_config(config, { task = "projection" })
  local params = {}
  for name in pairs(alone.params) do params[name] = whole.params[name] end
  alone.save_pretrained(folder, { params = params })
  alone = redco.models.from_pretrained(folder)
  expect_equal(alone.config.architectures[1], "CLIPTextModelWithProjection")
  inputs.pixel_values = nil
  expect_close(alone(alone.params, inputs), features, 0, 0)
  local plain = redco.models.from_pretrained(folder, { task = "features" })
  expect_equal(plain.config.architectures[1], "CLIPTextModel")
  expect_close(plain(plain.params, inputs):matmul(params["text_projection.weight"]:t()), features,
    1e-5, 1e-5)
end)

test("hidden states of all layers", function()
  local model, inputs = redco.models.from_pretrained "../cases/clip", inputs_of "clip"
  local last, all = model.hidden_states(model.params, inputs)
  expect_equal(#all, 3)
  expect_equal(table.concat(last.shape, " "), "4 8 16")
  local of_image, kept = model.hidden_states(model.params, { pixel_values = inputs.pixel_values })
  expect_equal(table.concat(of_image.shape, " "), "4 10 24")
  expect_close(of_image, kept[3], 0, 0)
  local vit = redco.models.from_pretrained "../cases/vit_features"
  local state, states = vit.hidden_states(vit.params, { pixel_values = inputs.pixel_values })
  expect_equal(#states, 2)
  expect_equal(table.concat(state.shape, " "), "4 10 24")
end)

test("features are read at the first end token, or by the old rule at the largest", function()
  local ids = torch.tensor { { 3, 10, 9, 4, 9 }, { 9, 2, 2, 10, 10 } }
  for eos, places in pairs { [9] = { 2, 0 }, [2] = { 1, 3 } } do
    local model = new("clip_text_model", { eos_token_id = eos })
    local features = model(model.params, { input_ids = ids })
    local hidden = model.hidden_states(model.params, { input_ids = ids })
    for row, place in ipairs(places) do
      expect_close(features[row - 1], hidden[row - 1][place], 0, 0)
    end
  end
end)

test("old configurations have the parts' values a second time", function()
  local model = redco.models.from_pretrained("../cases/clip", { config = {
    text_config_dict = { hidden_act = "gelu" }, vision_config = {},
    vision_config_dict = with(redco.data.json("../cases/clip/config.json").vision_config) } })
  expect_equal(model.config.text_config.hidden_act, "gelu")
  expect_equal(model.config.text_config_dict, nil)
  expect_equal(model.config.vision_config.patch_size, 4)
end)

test("low in memory, in bfloat16, with adapters", function()
  for name, target in pairs { clip = "q_proj", siglip = "q_proj", vit = "query" } do
    local folder = "../cases/" .. name
    local batch = inputs_of(name)
    local model = redco.models.from_pretrained(folder)
    local loss = model.loss(model.params, batch):item()
    local mapped = redco.models.from_pretrained(folder, { low_memory = true })
    expect_equal(mapped.loss(mapped.params, batch):item(), loss)
    local narrow = redco.models.from_pretrained(folder, { dtype = "bfloat16" })
    batch.pixel_values = batch.pixel_values:to "bfloat16"
    local rough = narrow.loss(narrow.params, batch)
    expect_equal(rough.dtype, "float32")
    expect_close(torch.tensor(rough:item()), torch.tensor(loss), 0.03)
    batch.pixel_values = batch.pixel_values:float()
    local _, gradients = redco.value_and_grad(function(params)
      return (model.loss(params, batch))
    end)(redco.lora.add(model.params, { r = 2, target_modules = { target },
      generator = torch.Generator(1) }))
    local n_adapters = 0
    for key, gradient in pairs(gradients) do
      if key:find "lora_B" then
        n_adapters = n_adapters + 1
        assert(gradient:abs():sum():item() > 0, key)
      end
    end
    expect_equal(n_adapters, name == "vit" and 1 or 4)
  end
end)

test("dropout of attention, by the rng, in training only", function()
  local inputs = { pixel_values = torch.randn({ 2, 3, 6, 6 }, { generator = torch.Generator(2) }) }
  local plain = new "siglip_vision_model"
  local expected = plain(plain.params, inputs)
  local model = new("siglip_vision_model", { attention_dropout = 0.5 })
  local function run(seed, train)
    return model(plain.params, inputs, { train = train, rng = torch.Generator(seed) })
  end
  assert(torch.equal(run(1, true), run(1, true)))
  assert(not torch.equal(run(1, true), run(2, true)))
  assert(torch.equal(run(1, false), expected))
end)

test("ViT: a regression, several labels, a folder without a pooler", function()
  local inputs = { pixel_values = torch.randn({ 2, 3, 6, 6 }, { generator = torch.Generator(2) }) }
  local model = new("vit", { num_labels = 1 })
  inputs.labels = torch.tensor { 0.5, -1.5 }
  local difference = model(model.params, inputs):view { -1 } - inputs.labels
  expect_close(model.loss(model.params, inputs), difference:square():mean(), 1e-6, 1e-6)
  model = new("vit", { num_labels = 3 })
  inputs.labels = torch.tensor({ { 1, 0, 1 }, { 0, 0, 1 } }, { dtype = "float32" })
  local p = model(model.params, inputs):sigmoid()
  local each = inputs.labels * p:log() + (1 - inputs.labels) * (1 - p):log()
  expect_close(model.loss(model.params, inputs), -each:mean(), 1e-5, 1e-6)
  local folder = testing.folder() .. "/vit"
  model.save_pretrained(folder)
  local features = redco.models.from_pretrained(folder, { task = "features",
    generator = torch.Generator(1) })
  expect_equal(features.config.architectures[1], "ViTModel")
  expect_equal(table.concat(features(features.params, inputs).shape, " "), "2 8")
  inputs.labels = nil
  expect_error(function() model.loss(model.params, inputs) end, "inputs.labels are missing")
end)

test("what is wrong is said by name", function()
  local here = "image_text_spec.lua:"
  expect_error(function() new("clip", { text_config = "big" }) end, here, "text_config", "a table")
  expect_error(function() new("clip", { text_config = with(text, { model_type = "bert" }) }) end,
    here, "its text_config has model_type 'bert'", "clip_text_model")
  expect_error(function() new("clip", { vision_config = with(image, { pach_size = 3 }) }) end, here,
    "unknown key 'pach_size'", "patch_size")
  expect_error(function() new("clip_text_model", { eos_token_id = false }) end, here,
    "eos_token_id is nil", "end token")
  expect_error(function() new("clip_text_model", { num_attention_heads = 3 }) end, here,
    "hidden_size (8)", "num_attention_heads (3)")
  expect_error(function() new("clip_text_model", nil, "causal_lm") end, here,
    "unknown task 'causal_lm'", "features", "projection")
  expect_error(function() new("clip", { logit_scale_init_value = 1e308 }) end, here,
    "logit_scale_init_value is 1e+308")
  expect_error(function() new("siglip", { text_config = with(text, { projection_size = 5 }) }) end,
    here, "projection_size (5)", "hidden_size (8)")
  expect_error(function() new("siglip_vision_model", { vision_use_head = false }) end, here,
    "vision_use_head = false")
  expect_error(function() new("vit", { problem_type = "ranking" }) end, here, "ranking")

  local model = new "clip"
  local inputs = { input_ids = torch.tensor { { 3, 4, 9 } },
    pixel_values = torch.zeros { 2, 3, 6, 6 } }
  expect_error(function() model.loss(model.params, inputs) end, here, "2 images and 1 texts")
  expect_error(function() model(model.params, { input_ids = inputs.input_ids }) end, here,
    "inputs.pixel_values are missing")
  expect_error(function() model(model.params, { pixel_values = inputs.pixel_values }) end, here,
    "inputs.input_ids are missing")
  expect_error(function()
    model.get_image_features(model.params, { pixel_values = torch.zeros { 1, 6, 6, 3 } })
  end, here, "[1, 6, 6, 3], expected [batch, 3, 6, 6]")
  expect_error(function()
    local ids = torch.zeros({ 1, 7 }, { dtype = "int64" })
    model.get_text_features(model.params, { input_ids = ids })
  end, here, "7 tokens", "max_position_embeddings, 6")
  expect_error(function() model:get_text_features(inputs) end, here, "with a dot")
  expect_error(function() model.generate(model.params, inputs) end, here, "no text")
  expect_error(function()
    model(model.params, inputs, { cache = redco.models.new_cache() })
  end, here, "a cache is for generation")
  expect_error(function()
    model.loss(model.params, inputs, { label_smoothing = 0.1 })
  end, here, "label_smoothing")
  local alone = new "clip_vision_model"
  expect_error(function() alone.loss(alone.params, inputs) end, here, "CLIPVisionModel", "no loss")
  local params = redco.lora.add(new("siglip").params, { r = 2, target_modules = { "out_proj" } })
  model = new "siglip"
  expect_error(function() model(params, with(inputs, {
    input_ids = torch.tensor { { 3, 4, 9 }, { 3, 4, 9 } } })) end, here, "out_proj has an adapter")
end)

testing.test("CLIP and SigLIP with a new head classify images", function()
  for _, name in ipairs { "clip", "siglip" } do
    local model = redco.models.from_pretrained("../cases/" .. name,
      { task = "image_classification" })
    local pixel_values = inputs_of(name).pixel_values
    local labels = torch.zeros({ pixel_values:size(0) }, { dtype = "int64" })
    local batch = { pixel_values = pixel_values, labels = labels }
    testing.expect_equal(tostring(model(model.params, batch).shape),
      ("torch.Size([%d, 2])"):format(pixel_values:size(0)))
    local loss, gradients = redco.value_and_grad(function(params)
      return (model.loss(params, batch))
    end)(model.params)
    assert(loss:item() > 0)
    assert(gradients["classifier.weight"]:abs():max():item() > 0)
    testing.expect_equal(model.params["text_model.embeddings.token_embedding.weight"], nil)
    expect_error(function() model.loss(model.params, { pixel_values = pixel_values }) end,
      "image_text_spec.lua:", "ForImageClassification: inputs.labels are missing")
  end
end)

testing.finish()
