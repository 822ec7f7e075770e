-- Pictures from Stable Diffusion 3, Flux and DiT beside diffusers'
-- (tests/tools/make_transformer_pictures.py), the losses, single files of the original layout,
-- adapters in kohya's format, and what is refused.
local cases = require "diffusion_cases"
local native = require "redco.native"
local redco = require "redco"
local testing = require "testing"

local torch = redco.torch
local test, expect_close, expect_error = testing.test, testing.expect_close, testing.expect_error

local source = os.getenv "REDCO_SOURCE" or "../.."
local sd3 = redco.diffusion.from_pretrained(source .. "/tests/cases/stable_diffusion_3")
local dit = redco.diffusion.from_pretrained(source .. "/tests/cases/dit")
local flux = redco.diffusion.from_pretrained(source .. "/tests/cases/flux")
local arrays = torch.load "transformer_pictures.safetensors"

local function batch_of(pipeline)
  local o = { max_sequence_length = 16 }
  local batch = pipeline.tokenize({ "a cat", "the big red dog" }, o)
  for name, ids in pairs(pipeline.tokenize({ "", "a tree" }, o)) do
    batch["negative_" .. name] = ids
  end
  return batch
end

local function sd3_batch() return batch_of(sd3) end

local function with(options, more)
  local all = {}
  for key, value in pairs(options) do all[key] = value end
  for key, value in pairs(more) do all[key] = value end
  return all
end

local function check(pipeline, batch, expected, more)
  local o = with({ latents = arrays.noise, seed = 0, num_inference_steps = 4, guidance_scale = 4 },
    more)
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

test("text to image with Flux, whose model is told the guidance", function()
  local batch, o = batch_of(flux), { height = 16, width = 16, output = "latents" }
  local function scheduled(changes)
    changes._class_name = "FlowMatchEulerDiscreteScheduler"
    return with(o, { scheduler = changes })
  end
  check(flux, batch, arrays["flux.fixed"], scheduled { shift = 3 })
  check(flux, batch, arrays["flux.dynamic"], scheduled { use_dynamic_shifting = true })
  check(flux, batch, arrays["flux.negative"], with(scheduled {}, { true_cfg_scale = 2 }))
  local function generate(options) return flux.generate(flux.params, batch, options) end
  o = with(o, { latents = arrays.noise, seed = 0, num_inference_steps = 1 })
  local weak, default = with(o, { guidance_scale = 1 }), with(o, { guidance_scale = 3.5 })
  assert(not generate(weak):equal(generate(default)))
  assert(generate(o):equal(generate(default)))
  expect_error(function() sd3.generate(sd3.params, sd3_batch(), { seed = 1, true_cfg_scale = 2 })
  end, "true_cfg_scale is not for a StableDiffusion3Pipeline")
  testing.expect_equal(flux.tokenize("a cat").input_ids_2:size(1), 512)
end)

test("a pipeline of Flux from its parts, and its losses", function()
  local made = redco.diffusion.pipeline { transformer = flux.transformer, vae = flux.vae,
    text_encoder = flux.text_encoder, text_encoder_2 = flux.text_encoder_2,
    tokenizer = flux.tokenizer, tokenizer_2 = flux.tokenizer_2, scheduler = flux.scheduler_config }
  testing.expect_equal(made.class_name, "FluxPipeline")
  made.save_pretrained(testing.folder() .. "/made")
  local again = redco.diffusion.from_pretrained(testing.folder() .. "/made")
  local batch = batch_of(again)
  batch.latents, batch.noise = arrays.noise, torch.randn({ 2, 4, 8, 8 },
    { generator = torch.Generator(1) })
  batch.timesteps = torch.tensor({ 99, 700 }, { dtype = "int64" })
  local states, pooled = again.encode_text(again.params, batch)
  local sigma = torch.tensor({ 0.1, 0.701 }):view { -1, 1, 1, 1 }
  for _, guidance in ipairs { 3.5, 1 } do
    local output = again.transformer(again.params.transformer,
      (1 - sigma) * batch.latents + sigma * batch.noise, sigma:view { -1 } * 1000, states,
      { pooled_projections = pooled, guidance = guidance })
    local loss = again.loss(again.params, batch, { guidance_scale = guidance })
    expect_close(loss, (output - (batch.noise - batch.latents)):square():mean())
  end
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

-- A folder like that of SD3, with another text inserted into the configuration of the first text
-- encoder.
local function folder_of(name, key, value)
  local dir = testing.folder() .. "/" .. name
  sd3.save_pretrained(dir)
  local path = dir .. "/text_encoder/config.json"
  local text = redco.data.read(path):gsub(('("%s": )%%d+'):format(key), "%1" .. value)
  local file = io.open(path, "w")
  file:write(text)
  file:close()
  return dir
end

test("a single file of Stable Diffusion 3", function()
  local whole = cases.single_file(sd3)
  local blocks = "model.diffusion_model.joint_blocks."
  local qkv = whole[blocks .. "0.x_block.attn.qkv.weight"]
  testing.expect_equal(table.concat(qkv.shape, " "), "48 16")
  assert(whole[blocks .. "0.x_block.attn2.ln_q.weight"])
  assert(not whole[blocks .. "1.context_block.attn.proj.weight"])
  -- Where the text ends, and at the end, the original has the shift before the scale.
  for name, own in pairs { [blocks .. "1.context_block.adaLN_modulation.1.bias"] =
    "transformer_blocks.1.norm1_context.linear.bias",
    ["model.diffusion_model.final_layer.adaLN_modulation.1.bias"] = "norm_out.linear.bias" } do
    assert(whole[name]:narrow(0, 0, 16):equal(sd3.params.transformer[own]:narrow(0, 16, 16)), name)
  end
  local function write(name, left_out)
    local tensors = {}
    for key, tensor in pairs(whole) do
      if not (left_out and key:find(left_out)) then tensors[key] = tensor end
    end
    native.save_weights(testing.folder() .. "/" .. name, tensors)
    return testing.folder() .. "/" .. name .. "/model.safetensors"
  end
  local dir = folder_of("square", "projection_dim", 16)
  native.save_weights(dir .. "/text_encoder", { ["text_projection.weight"] = torch.ones { 1 } })
  local file = write "whole"
  local function expect_same(found)
    for part, params in pairs(sd3.params) do
      for name, tensor in pairs(params) do
        local is_made = part == "text_encoder" and name == "text_projection.weight"
        if is_made then tensor = torch.eye(16) end
        assert(found[part][name]:equal(tensor), name)
      end
    end
  end
  expect_same(redco.diffusion.from_single_file(file, dir).params)
  -- T5 and the autoencoder are those of the folder.
  expect_same(redco.diffusion.from_single_file(write("small", "t5xxl"), dir).params)
  expect_same(redco.diffusion.from_single_file(write("smaller", "^first_stage"), dir).params)
  expect_error(function()
    redco.diffusion.from_single_file(write("empty", "^model%."), dir)
  end, "no weights of the SD3Transformer2DModel", "no names begin with model.diffusion_model.")
  expect_error(function()
    redco.diffusion.from_single_file(write("damaged", "1.x_block.attn.qkv.bias"), dir)
  end, "transformer_blocks.1.attn.to_k.bias", "are missing")
end)

-- The weights and the adapters of SD3 or DiT, with values that have an effect.
local function adapted(pipeline, modules)
  local params = {}
  for name, part in pairs(pipeline.params) do params[name] = part end
  params.transformer = redco.lora.add(params.transformer, { r = 2, lora_alpha = 6,
    target_modules = modules, generator = torch.Generator(1) })
  torch.no_grad(function()
    for name, tensor in pairs(params.transformer) do
      if name:find "lora_B" then tensor:normal_(0, 0.3, { generator = torch.Generator(2) }) end
    end
  end)
  return params
end

local function expect_kept(pipeline, modules)
  local params, dir = adapted(pipeline, modules), testing.folder() .. "/kohya"
  redco.diffusion.save_lora(dir, params, { format = "kohya" })
  local found = redco.diffusion.load_lora(pipeline, dir).transformer
  for name, value in pairs(params.transformer) do
    if torch.is_tensor(value) then
      assert(found[name]:equal(value), name)
    else
      expect_close(torch.tensor(found[name]), torch.tensor(value))
    end
  end
  for name in pairs(found) do assert(params.transformer[name], name) end
  return torch.load(dir .. "/pytorch_lora_weights.safetensors")
end

test("kohya's adapters of transformers have q, k and v in one", function()
  local whole = expect_kept(sd3, { "to_q", "to_v", "add_k_proj", "linear", "net.2" })
  local up = whole["lora_unet_joint_blocks_0_x_block_attn_qkv.lora_up.weight"]
  testing.expect_equal(table.concat(up.shape, " "), "48 4")
  assert(up:narrow(0, 16, 16):eq(0):all():item(), "of k")
  assert(whole["lora_unet_joint_blocks_1_context_block_adaLN_modulation_1.alpha"])
  whole = expect_kept(dit, { "to_q", "to_k", "to_v", "proj_out_1", "linear_2" })
  assert(whole["lora_unet_blocks_1_attn_qkv.lora_up.weight"])
  assert(whole["lora_unet_final_layer_adaLN_modulation_1.lora_up.weight"])

  -- As kohya trains them, each of the three has all ranks.
  local generator, stem = torch.Generator(3), "lora_unet_joint_blocks_0_x_block_attn_qkv."
  local a = torch.randn({ 2, 16 }, { generator = generator })
  local b = torch.randn({ 48, 2 }, { generator = generator })
  local function load(rows)
    local dir = testing.folder() .. "/dense"
    native.save_weights(dir, { [stem .. "lora_down.weight"] = a,
      [stem .. "lora_up.weight"] = b:narrow(0, 0, rows), [stem .. "alpha"] = torch.tensor(1) })
    return redco.diffusion.load_lora(sd3, dir .. "/model.safetensors").transformer
  end
  local merged, own = redco.lora.merge(load(48)), sd3.params.transformer
  for i, name in ipairs { "to_q", "to_k", "to_v" } do
    name = "transformer_blocks.0.attn." .. name .. ".weight"
    expect_close(merged[name], own[name] + 0.5 * b:narrow(0, 16 * (i - 1), 16):matmul(a))
  end
  expect_error(function() load(32) end, "[2, 16] and [32, 2], expected [2, 16] and [48, 2]")
  assert(own["transformer_blocks.0.attn.to_q.lora_A.weight"] == nil)
end)

test("DiT's own file has its embeddings once", function()
  local name_of, whole = require("redco.diffusion.original_names").dit(), {}
  local own, joined = dit.params.transformer, {}
  local shared = {}
  for name, tensor in pairs(own) do
    local original, form = name_of(name)
    if form == "shared" then tensor = own[name:gsub("blocks%.%d+", "blocks.0")] end
    shared[name] = tensor
    if type(form) == "number" then
      joined[original] = joined[original] or {}
      joined[original][form + 1] = tensor
    else
      whole[original] = tensor
    end
  end
  for original, parts in pairs(joined) do whole[original] = torch.cat(parts, 0) end
  assert(whole["t_embedder.mlp.0.weight"] and whole["blocks.1.attn.qkv.weight"])
  native.save_weights(testing.folder() .. "/dit", whole)
  local read = redco.diffusion.from_single_file(testing.folder() .. "/dit/model.safetensors",
    source .. "/tests/cases/dit")
  for name, tensor in pairs(shared) do
    assert(read.params.transformer[name]:equal(tensor), name)
  end
  assert(read.params.vae["decoder.conv_in.weight"]:equal(dit.params.vae["decoder.conv_in.weight"]))
end)

test("what is wrong is named", function()
  local folder = source .. "/tests/cases/stable_diffusion_3"
  local config = redco.data.json(folder .. "/transformer/config.json")
  local function new(key, value, ...)
    local changed = with(config, { [key] = value })
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
  config = redco.data.json(source .. "/tests/cases/flux/transformer/config.json")
  new("axes_dims_rope", { 4, 4 }, "2 sizes with the sum 8, expected 3", "attention_head_dim (8)")
  new("axes_dims_rope", { 3, 3, 2 }, "axes_dims_rope has 3", "multiple of the size of a pair (2)")
  new("in_channels", 6, "in_channels is 6", "multiple of 4")
  new("patch_size", 2, "patch_size = 2 is not supported")
  transformer, params = flux.transformer, flux.params.transformer
  local function call(sample, o)
    return function() transformer(params, sample, 1, torch.ones { 1, 3, 20 }, o) end
  end
  local pooled = torch.ones { 1, 16 }
  expect_error(call(torch.ones { 1, 4, 8, 8 }, { pooled_projections = pooled }),
    "guidance is missing")
  expect_error(call(torch.ones { 1, 4, 7, 8 }, { pooled_projections = pooled, guidance = 1 }),
    "sample is [1, 4, 7, 8]", "multiples of 2")
  expect_error(function()
    redco.diffusion.save_lora(testing.folder(), adapted(flux, { "to_q" }), { format = "kohya" })
  end, "not supported for transformer.single_transformer_blocks.0.attn.to_q of Flux")
  expect_error(function() dit.transformer(dit.params.transformer, torch.ones { 1, 4, 8, 8 }, 1)
  end, "class_labels are nil, expected int64 [1]")
  expect_error(function() dit.generate(dit.params, {}, { seed = 1 }) end, "class_labels")
end)

testing.finish()
