-- Stable Diffusion's UNets, autoencoders and text encoders, their folders, single files of the
-- original layout and adapters. The numbers are those of diffusers.
local cases = require "model_cases"
local diffusion = require "diffusion_cases"
local native = require "redco.native"
local redco = require "redco"
local testing = require "testing"

local torch, tree = redco.torch, redco.tree
local test, expect_equal, expect_error = testing.test, testing.expect_equal, testing.expect_error
local expect_close = testing.expect_close

local folder = "../cases/stable_diffusion"

local function expect_same(actual, expected)
  for part, params in pairs(expected) do
    for name, tensor in pairs(params) do expect_close(actual[part][name], tensor, 0, 0) end
  end
end

local function with(config, changes)
  local copy = {}
  for key, value in pairs(config) do copy[key] = value end
  for key, value in pairs(changes) do copy[key] = value end
  return copy
end

diffusion.each(function(case)
  test(case.dir .. ": what the parts compute", function()
    diffusion.expect_outputs(case, redco.diffusion.from_pretrained(case.dir))
  end)

  test(case.dir .. ": loss, gradients and steps of AdamW", function()
    local pipeline, losses = redco.diffusion.from_pretrained(case.dir), {}
    local deployer = redco.Deployer { seed = 1, verbose = false }
    local trainer = redco.Trainer {
      deployer = deployer, params = pipeline.params,
      collate_fn = function(rows) return rows[1] end,
      optimizer = redco.optim.freeze(diffusion.optimizer(case),
        diffusion.is_frozen(pipeline)),
      loss_fn = function(_, _, params, batch) return diffusion.loss(pipeline, params, batch) end,
      train_step_fn = function(_, _, batch, defaults)
        local loss, gradients = defaults.value_and_grad(function(params)
          return diffusion.loss(pipeline, params, batch)
        end)
        if #losses == 0 then cases.expect_gradients(case, gradients[pipeline.kind.model]) end
        losses[#losses + 1] = loss:item()
        return { loss = loss, norm = defaults.apply_gradients(gradients) }
      end,
    }
    for step = 0, #case.expected.training.adamw.losses - 1 do
      trainer:train { examples = { diffusion.batch(case, step) }, per_device_batch_size = 1 }
    end
    diffusion.expect_trained(case, losses, trainer.params[pipeline.kind.model])
  end)

  test(case.dir .. ": a folder that was written has the same parts", function()
    local pipeline, dir = redco.diffusion.from_pretrained(case.dir), testing.folder() .. "/saved"
    pipeline.save_pretrained(dir)
    local again = redco.diffusion.from_pretrained(dir)
    expect_same(again.params, pipeline.params)
    expect_equal(again.scheduler_config._class_name, pipeline.scheduler_config._class_name)
    for _, part in ipairs { pipeline.kind.model, "vae" } do
      for key, value in pairs(pipeline[part].config) do
        expect_equal(native.describe(again[part].config[key]), native.describe(value))
      end
    end
    if not pipeline.kind.texts then return end
    for name, ids in pairs(again.tokenize { "a cat" }) do
      expect_close(ids, pipeline.tokenize("a cat")[name], 0, 0)
    end
  end)
end)

test("an autoencoder with the older names of its attention", function()
  local vae, dir, older = redco.diffusion.load(folder .. "/vae"), testing.folder() .. "/vae", {}
  for name, tensor in pairs(vae.params) do
    local own = name:gsub("(attentions%.0%.)to_out%.0", "%1proj_attn")
      :gsub("(attentions%.0%.)to_q", "%1query"):gsub("(attentions%.0%.)to_k", "%1key")
      :gsub("(attentions%.0%.)to_v", "%1value")
    older[own] = tensor
  end
  native.save_weights(dir, older, { stem = "diffusion_pytorch_model",
    texts = { ["config.json"] = redco.data.read(folder .. "/vae/config.json") } })
  expect_same({ redco.diffusion.load(dir).params }, { vae.params })
end)

test("new models", function()
  local config = redco.data.json(folder .. "/unet/config.json")
  local unet = redco.diffusion.from_config(config, { generator = torch.Generator(1) })
  local again = redco.diffusion.from_config(folder .. "/unet", { generator = torch.Generator(1) })
  expect_same({ again.params }, { unet.params })
  local y = unet(unet.params, torch.randn { 1, 4, 8, 8 }, 7, torch.randn { 1, 3, 16 })
  expect_equal(table.concat(y.shape, " "), "1 4 8 8")
  local odd = unet(unet.params, torch.randn { 1, 4, 7, 9 }, 7, torch.randn { 1, 3, 16 })
  expect_equal(table.concat(odd.shape, " "), "1 4 7 9")
  expect_equal(tostring(unet):match "^UNet2DConditionModel: %d+ parameters" ~= nil, true)
end)

test("a single file of the original layout", function()
  local pipeline = redco.diffusion.from_pretrained(folder)
  local params, whole = pipeline.params, diffusion.single_file(pipeline)
  assert(whole["model.diffusion_model.input_blocks.1.1.transformer_blocks.0.attn2.to_k.weight"])
  assert(whole["model.diffusion_model.output_blocks.1.1.conv.weight"])
  assert(whole["first_stage_model.decoder.up.1.upsample.conv.weight"])
  local dir = testing.folder() .. "/single"
  native.save_weights(dir, whole)
  local path = dir .. "/model.safetensors"
  expect_same(redco.diffusion.from_single_file(path, folder).params, params)
  whole["model.diffusion_model.out.2.bias"] = nil
  native.save_weights(dir, whole)
  expect_error(function() redco.diffusion.from_single_file(path, folder) end,
    "weights of the UNet2DConditionModel are missing: conv_out.bias")
end)

-- Adapters with other values than those of new ones, which do nothing.
local function with_adapters(params)
  local result = tree.map(function(leaf) return leaf end, params)
  result.unet = redco.lora.add(params.unet, { r = 2, lora_alpha = 6,
    target_modules = { "to_q", "to_k", "to_v", "to_out.0" }, generator = torch.Generator(1) })
  result.text_encoder = redco.lora.add(params.text_encoder, { r = 3, lora_alpha = 3,
    target_modules = { "q_proj", "v_proj" }, generator = torch.Generator(2) })
  torch.no_grad(function()
    for _, part in pairs(result) do
      for name, tensor in pairs(part) do
        if name:find "lora_B" then tensor:normal_(0, 0.3, { generator = torch.Generator(3) }) end
      end
    end
  end)
  return result
end

test("adapters in the forms of diffusers and kohya", function()
  local pipeline = redco.diffusion.from_pretrained(folder)
  local params = with_adapters(pipeline.params)
  local x, ids = torch.randn { 1, 4, 8, 8 }, torch.tensor { { 3, 4, 5 } }
  local function run(given)
    return torch.no_grad(function()
      return pipeline.unet(given.unet, x, 5, (pipeline.encode_text(given, { input_ids = ids })))
    end)
  end
  local expected = run(params)
  assert((run(pipeline.params) - expected):abs():max():item() > 0.01, "adapters without effect")
  for _, format in ipairs { "diffusers", "kohya" } do
    local dir = testing.folder() .. "/" .. format
    redco.diffusion.save_lora(dir, params, { format = format })
    expect_close(run(redco.diffusion.load_lora(pipeline, dir)), expected, 1e-4, 1e-5)
  end
  local dir = testing.folder() .. "/wrong"
  native.save_weights(dir, { ["lora_unet_nothing.lora_down.weight"] = torch.ones { 2, 2 } })
  expect_error(function() redco.diffusion.load_lora(pipeline, dir .. "/model.safetensors") end,
    "there is no layer for lora_unet_nothing.lora_down.weight")
  for _, options in ipairs { { use_dora = true }, { init_lora_weights = "pissa" } } do
    options.target_modules, options.r = { "to_q" }, 2
    local other = redco.lora.add(pipeline.params, options)
    expect_error(function() redco.diffusion.save_lora(dir, other) end, "use_dora",
      "pipeline.save_pretrained")
  end
  -- Whatever else was trained has no place in such a file.
  params.unet["conv_out.weight"] = params.unet["conv_out.weight"]:clone():requires_grad_()
  expect_error(function() redco.diffusion.save_lora(dir, params) end,
    "unet.conv_out.weight was trained without an adapter", "pipeline.save_pretrained")
end)

test("prompts that are too long are cut, with a warning", function()
  local pipeline, warnings = redco.diffusion.from_pretrained(folder), {}
  pipeline.warn = function(text) warnings[#warnings + 1] = text end
  local length = pipeline.tokenizer.model_max_length
  local ids = pipeline.tokenize({ "a cat", ("big "):rep(length + 3) }).input_ids
  expect_equal(table.concat(ids.shape, " "), "2 " .. length)
  expect_equal(#warnings, 1)
  assert(warnings[1]:find "this part is cut off: big big", warnings[1])
end)

test("what is wrong is named", function()
  local unet = redco.data.json(folder .. "/unet/config.json")
  local function new(changes, ...)
    local config = with(unet, changes)
    expect_error(function() redco.diffusion.from_config(config) end, ...)
  end
  new({ _class_name = "UNet3D" }, "unknown class 'UNet3D'", "UNet2DConditionModel")
  new({ norm_num_group = 2 }, "unknown key 'norm_num_group'", "did you mean 'norm_num_groups'?")
  new({ norm_num_groups = 3 }, "block_out_channels has 8", "norm_num_groups (3)")
  new({ attention_head_dim = 3 }, "attention_head_dim (3), the number of heads")
  new({ resnet_time_scale_shift = "scale_shift" }, "only default")
  new({ down_block_types = { "AttnDownBlock2D", "DownBlock2D" } }, "'AttnDownBlock2D'")
  new({ layers_per_block = { 1 } }, "layers_per_block has 1 entries")
  new({ addition_embed_type = "image" }, "only 'text_time' and null")
  new({ dropout = 2 }, "dropout is 2, expected a probability")
  expect_error(function() redco.diffusion.from_pretrained "nowhere" end,
    "there is no file or folder nowhere here")
  local dir = testing.folder() .. "/parts"
  local function index(text, ...)
    native.write_texts(dir, { texts = { ["model_index.json"] = text } })
    expect_error(function() redco.diffusion.from_pretrained(dir) end, ...)
  end
  index('{"_class_name": "KolorsPipeline"}', "unknown class 'KolorsPipeline'")
  index('{"_class_name": "StableDiffusionPipeline"}', "has no part scheduler")
  local pipeline = redco.diffusion.from_pretrained(folder)
  expect_error(function() pipeline.unet(pipeline.params.unet, torch.ones { 1, 3, 8, 8 }, 1) end,
    "sample is [1, 3, 8, 8], expected [batch, 4, height, width]")
  expect_error(function() pipeline.vae(pipeline.params.vae) end, "an AutoencoderKL has no call")
  expect_error(function()
    pipeline.unet.save_pretrained(dir, { params = with_adapters(pipeline.params).unet })
  end, "the parameters have adapters")
end)

testing.finish()
