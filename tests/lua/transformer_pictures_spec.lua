-- Pictures from Stable Diffusion 3 and DiT beside diffusers'
-- (tests/tools/make_transformer_pictures.py), the losses, and what is refused.
local redco = require "redco"
local testing = require "testing"

local torch = redco.torch
local test, expect_close, expect_error = testing.test, testing.expect_close, testing.expect_error

local source = os.getenv "REDCO_SOURCE" or "../.."
local sd3 = redco.diffusion.from_pretrained(source .. "/tests/cases/stable_diffusion_3")
local dit = redco.diffusion.from_pretrained(source .. "/tests/cases/dit")
local arrays = torch.load "transformer_pictures.safetensors"

local function sd3_batch()
  local o = { max_sequence_length = 16 }
  local batch = sd3.tokenize({ "a cat", "the big red dog" }, o)
  for name, ids in pairs(sd3.tokenize({ "", "a tree" }, o)) do batch["negative_" .. name] = ids end
  return batch
end

local function check(pipeline, batch, expected, more)
  local o = { latents = arrays.noise, seed = 0, num_inference_steps = 4, guidance_scale = 4 }
  for key, value in pairs(more) do o[key] = value end
  expect_close(pipeline.generate(pipeline.params, batch, o), expected, 1e-4, 1e-5)
end

test("text to image with Stable Diffusion 3", function()
  check(sd3, sd3_batch(), arrays["text.fixed"], { output = "latents" })
  check(sd3, sd3_batch(), arrays["text.clip_skip"], { output = "latents", clip_skip = 1 })
  check(sd3, sd3_batch(), arrays["text.dynamic"], { output = "latents",
    scheduler = { _class_name = "FlowMatchEulerDiscreteScheduler", use_dynamic_shifting = true } })
end)

test("image to image with Stable Diffusion 3", function()
  local batch = sd3_batch()
  batch.pixel_values = arrays.image
  batch.image_latents = sd3.encode_images(sd3.params, arrays.image).latent_mean
  for name, strength in pairs { fixed = 0.6, part_of_a_step = 0.5 } do
    check(sd3, batch, arrays["image." .. name], { output = "latents", num_inference_steps = 5,
      strength = strength })
  end
end)

test("without T5 its tokens are zeros", function()
  local dir = testing.folder() .. "/without"
  sd3.save_pretrained(dir)
  local index = redco.data.read(dir .. "/model_index.json")
  for _, name in ipairs { "text_encoder_3", "tokenizer_3" } do
    index = index:gsub('("' .. name .. '": )%b[]', "%1[null, null]")
  end
  local file = io.open(dir .. "/model_index.json", "w")
  file:write(index)
  file:close()
  local without = redco.diffusion.from_pretrained(dir)
  local batch = without.tokenize "a cat"
  assert(not batch.input_ids_3)
  local states = without.encode_text(without.params, batch)
  local length = batch.input_ids:size(1)
  testing.expect_equal(states:size(1), 2 * length)
  assert(states:narrow(1, length, length):eq(0):all():item())
  without.save_pretrained(dir .. "/again")
  redco.diffusion.from_pretrained(dir .. "/again")
end)

test("classes with DiT", function()
  local batch = dit.tokenize { 1, 2 }
  check(dit, batch, arrays["class.4.0"], {})
  check(dit, batch, arrays["class.1.0"], { guidance_scale = 1 })
  local image = dit(1, { num_inference_steps = 2, seed = 1 })
  assert(image:equal(dit({ 1 }, { num_inference_steps = 2, seed = 1 })))
  dit.config.id2label = { ["7"] = "tench, Tinca tinca" }
  testing.expect_equal(dit.tokenize("Tinca tinca").class_labels[0]:item(), 7)
  expect_error(function() dit.tokenize "shark" end, "'shark' is no class")
  expect_error(function() dit.tokenize(1001) end, "0 to 1000")
  dit.config.id2label = nil
end)

test("losses: flow matching, timesteps, dropped classes", function()
  local rng = redco.Rng(1)
  local batch = sd3.tokenize({ "a cat", "a dog" }, { max_sequence_length = 8 })
  batch.latents, batch.noise = arrays.noise, torch.randn({ 2, 4, 8, 8 }, { generator = rng })
  batch.timesteps = torch.tensor({ 99, 700 }, { dtype = "int64" })
  local states, pooled = sd3.encode_text(sd3.params, batch)
  local shift = sd3.scheduler_config.shift
  local share = (batch.timesteps + 1):float() / 1000
  local sigma = (shift * share / (1 + (shift - 1) * share)):view { -1, 1, 1, 1 }
  local output = sd3.transformer(sd3.params.transformer,
    (1 - sigma) * batch.latents + sigma * batch.noise, sigma:view { -1 } * 1000, states,
    { pooled_projections = pooled })
  expect_close(sd3.loss(sd3.params, batch),
    (output - (batch.noise - batch.latents)):square():mean())
  batch.timesteps = nil
  for _, kind in ipairs { "uniform", "logit_normal" } do
    local o = { rng = redco.Rng(2), timestep_sampling = kind }
    assert(sd3.loss(sd3.params, batch, o):item() > 0)
  end
  expect_error(function()
    sd3.loss(sd3.params, batch, { rng = rng, timestep_sampling = "cosmap" })
  end, "'uniform' or 'logit_normal', got 'cosmap'")
  local classes = { class_labels = torch.tensor({ 1, 2 }, { dtype = "int64" }),
    latents = batch.latents, noise = batch.noise,
    timesteps = torch.tensor({ 99, 700 }, { dtype = "int64" }) }
  local loss = dit.loss(dit.params, classes,
    { train = true, caption_dropout = 1, rng = redco.Rng(1) })
  classes.class_labels = torch.full_like(classes.class_labels, 1000)
  expect_close(loss, (dit.loss(dit.params, classes)))
end)

test("what is wrong is named", function()
  local folder = source .. "/tests/cases/stable_diffusion_3"
  local config = redco.data.json(folder .. "/transformer/config.json")
  local function new(key, value, ...)
    local changed = {}
    for name, old in pairs(config) do changed[name] = old end
    changed[key] = value
    expect_error(function() redco.diffusion.from_config(changed) end, ...)
  end
  new("qk_norm", "layer_norm", "only 'rms_norm' and null")
  new("caption_projection_dim", 20, "caption_projection_dim is 20")
  new("dual_attention_layers", { 2 }, "numbers below num_layers (2)")
  local transformer, params = sd3.transformer, sd3.params.transformer
  expect_error(function() transformer(params, torch.ones { 1, 4, 7, 8 }, 1) end, "multiples of 2")
  expect_error(function() transformer(params, torch.ones { 1, 4, 8, 8 }, 1, torch.ones { 1, 3, 4 })
  end, "encoder_hidden_states are [1, 3, 4]")
  expect_error(function() transformer(params, torch.ones { 1, 4, 8, 16 }, 1,
    torch.ones { 1, 3, 44 }, { pooled_projections = torch.ones { 1, 32 } })
  end, "more than pos_embed_max_size")
  expect_error(function() dit.transformer(dit.params.transformer, torch.ones { 1, 4, 8, 8 }, 1)
  end, "class_labels are nil, expected int64 [1]")
  expect_error(function() dit.generate(dit.params, {}, { seed = 1 }) end, "class_labels")
end)

testing.finish()
