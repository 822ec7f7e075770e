-- A seed gives the same pictures, and a batch the same loss and gradients, whether processes share
-- the model, the batch, both or nothing.
local redco = require "redco"
local testing = require "testing"

local torch = redco.torch
local source = assert(os.getenv "REDCO_SOURCE")
local pipeline = redco.diffusion.from_pretrained(source .. "/tests/cases/stable_diffusion")
local n_processes = redco.Deployer { seed = 1, verbose = false }.n_processes
local prompts = { "a taxi", "bone", "leg", "red heart" }
local side = pipeline.unet.config.sample_size * 2 ^ (#pipeline.vae.config.block_out_channels - 1)
local images = torch.rand({ 4, 3, side, side }, { generator = redco.Rng(9) }) * 2 - 1
local mask = torch.zeros { 4, 1, side, side }
mask:narrow(3, 0, side / 2):fill_(1)

local function expect_near(actual, expected, tolerance)
  local off = (actual:full() - expected):abs():max():item()
  assert(off <= tolerance, "off by " .. off)
end

local function collate(rows)
  local texts, pictures, masks = {}, {}, {}
  for i, row in ipairs(rows) do
    texts[i], pictures[i], masks[i] = row.text, row.image, row.mask
  end
  local batch = pipeline.tokenize(texts)
  batch.pixel_values = pictures[1] and torch.stack(pictures)
  batch.mask = masks[1] and torch.stack(masks)
  return batch
end

local function rows_of(has_image, has_mask)
  local rows = {}
  for i, text in ipairs(prompts) do
    rows[i] = { text = text, image = has_image and images[i - 1], mask = has_mask and mask[i - 1] }
  end
  return rows
end

local options = { seed = 7, num_inference_steps = 3, scheduler = "EulerAncestralDiscreteScheduler" }

local function check_pictures(deployer, rows)
  local predictor = redco.Predictor {
    deployer = deployer, collate_fn = collate,
    pred_fn = function(_, params, batch) return pipeline.generate(params, batch, options) end,
  }
  local pictures = predictor:predict { examples = rows, params = pipeline.params,
    per_device_batch_size = #rows / deployer.mesh.dp }
  expect_near(torch.stack(pictures), pipeline.generate(pipeline.params, collate(rows), options),
    1e-4)
end

local loss_options = { train = true, caption_dropout = 0.5, noise_offset = 0.1, min_snr_gamma = 5 }

local function loss_of(params, batch)
  local o = { rng = redco.Rng(3) }
  for key, value in pairs(loss_options) do o[key] = value end
  batch.prior = { input_ids = batch.input_ids, pixel_values = batch.pixel_values }
  return pipeline.loss(params, batch, o)
end

local function check_loss(deployer)
  local rows = rows_of(true)
  local loss, gradients = redco.value_and_grad(function(params)
    return (loss_of(params, collate(rows)))
  end)(pipeline.params)
  local names = { "unet.conv_in.weight", "unet.mid_block.resnets.0.conv1.weight" }
  local trained = redco.tree.map(function(t) return t:clone() end, pipeline.params)
  local off
  redco.Trainer {
    deployer = deployer, collate_fn = collate, params = trained,
    optimizer = redco.optim.freeze(redco.optim.sgd { learning_rate = 1e-3 }, "vae.*"),
    loss_fn = function(_, _, params, batch) return loss_of(params, batch) end,
    train_step_fn = function(_, _, batch, defaults)
      local found, own = defaults.value_and_grad(function(p) return loss_of(p, batch) end)
      off = math.abs(found:item() / loss:item() - 1)
      for _, name in ipairs(names) do
        local key = name:match "^unet%.(.*)"
        expect_near(own.unet[key], gradients.unet[key], 1e-4)
      end
      return { loss = found, norm = defaults.apply_gradients(own) }
    end,
  }:train_step { examples = rows, per_device_batch_size = #rows / deployer.mesh.dp }
  assert(off <= 1e-5, "the loss is off by " .. off)
end

-- Textual inversion trains two vectors, and nothing else.
local added_name = "text_model.embeddings.added_tokens.weight"
local learning_rate = 100

local function check_inversion(deployer)
  local own = redco.diffusion.from_pretrained(source .. "/tests/cases/stable_diffusion")
  local params = redco.diffusion.add_token(own, "<x>", { initializer = "!", n_vectors = 2 })
  local before = redco.tree.map(function(t) return t:full():clone() end, params)
  local function collate_rows(rows)
    local texts, pictures = {}, {}
    for i, row in ipairs(rows) do texts[i], pictures[i] = row.text, row.image end
    local batch = own.tokenize(texts)
    batch.pixel_values = torch.stack(pictures)
    return batch
  end
  local rows = rows_of(true)
  for i, text in ipairs { "a <x>", "<x>", "leg", "<x> <x>" } do rows[i].text = text end
  local function loss_here(given, batch)
    return own.loss(given, batch, { train = true, rng = redco.Rng(3) })
  end
  local loss, gradients = redco.value_and_grad(function(given)
    return (loss_here(given, collate_rows(rows)))
  end)(before)
  local found
  local trainer = redco.Trainer {
    deployer = deployer, collate_fn = collate_rows, params = params,
    optimizer = redco.optim.freeze(redco.optim.sgd { learning_rate = learning_rate },
      function(name) return not name:find "added_tokens" end),
    loss_fn = function(_, _, given, batch) return loss_here(given, batch) end,
    train_step_fn = function(_, _, batch, defaults)
      local own_loss, own_gradients = defaults.value_and_grad(function(given)
        return loss_here(given, batch)
      end)
      found = own_loss:item()
      return { loss = own_loss, norm = defaults.apply_gradients(own_gradients) }
    end,
  }
  trainer:train_step { examples = rows, per_device_batch_size = #rows / deployer.mesh.dp }
  local off = math.abs(found / loss:item() - 1)
  assert(off <= 1e-5, "the loss is off by " .. off)
  for part, tensors in pairs(before) do
    for name, tensor in pairs(tensors) do
      local after = trainer.params[part][name]:full()
      if name == added_name then
        local step = learning_rate * gradients[part][name]
        assert(step:abs():max():item() > 1e-2, "a step too short to compare")
        expect_near(after, tensor - step, 1e-4)
      else
        assert(after:equal(tensor), name .. " was changed")
      end
    end
  end
end

-- The transformers: {folder, what they are told, options}.
local others = {
  { "stable_diffusion_3", { "a cat", "a dog", "the tree", "" }, { seed = 7,
    num_inference_steps = 2 } },
  { "flux", { "a cat", "a dog", "the tree", "" }, { seed = 7, num_inference_steps = 2,
    height = 16, width = 16 } },
  { "dit", { 1, 2, 3, 1000 }, { seed = 7, num_inference_steps = 2 } },
}

local function check_transformers(deployer)
  for _, row in ipairs(others) do
    local folder, inputs, o = unpack(row)
    local other = redco.diffusion.from_pretrained(source .. "/tests/cases/" .. folder)
    local found = redco.Predictor {
      deployer = deployer, collate_fn = function(rows) return other.tokenize(rows) end,
      pred_fn = function(_, params, batch) return other.generate(params, batch, o) end,
    }:predict { examples = inputs, params = other.params,
      per_device_batch_size = #inputs / deployer.mesh.dp }
    expect_near(torch.stack(found), other.generate(other.params, other.tokenize(inputs), o), 1e-4)
  end
end

-- Kohya's format joins adapters of q, k and v, also those that processes share.
local function check_kohya(deployer, name)
  local sd3 = redco.diffusion.from_pretrained(source .. "/tests/cases/stable_diffusion_3")
  local params, dir = redco.tree.map(function(leaf) return leaf end, sd3.params), arg[1] .. name
  params.transformer = redco.lora.add(params.transformer, { r = 2,
    target_modules = { "to_q", "to_v", "add_k_proj", "linear" }, generator = torch.Generator(1) })
  local trainer = redco.Trainer {
    deployer = deployer, params = params,
    collate_fn = function(rows)
      local batch = sd3.tokenize(rows, { max_sequence_length = 8 })
      batch.latents = torch.randn({ #rows, 4, 8, 8 }, { generator = torch.Generator(#rows) })
      return batch
    end,
    optimizer = redco.optim.freeze(redco.optim.adamw { learning_rate = 0.1 },
      function(parameter) return not parameter:find "lora_" end),
    loss_fn = function(rng, _, given, batch) return sd3.loss(given, batch, { rng = rng }) end,
  }
  trainer:train_step { examples = prompts, per_device_batch_size = #prompts / deployer.mesh.dp }
  redco.diffusion.save_lora(dir, trainer.params, { format = "kohya" })
  local read = redco.lora.merge(redco.diffusion.load_lora(sd3, dir)).transformer
  for key, weight in pairs(redco.lora.merge(trainer.params).transformer) do
    expect_near(read[key]:full(), weight:full(), 1e-6)
  end
  local q = "transformer_blocks.0.attn.to_q.weight"
  assert(not read[q]:full():equal(sd3.params.transformer[q]:full()), "no step was taken")
end

for _, layout in ipairs { { 1, 0 }, { 1, 3 }, { 2, 0 }, { 2, 3 } } do
  local n_model_shards, zero = unpack(layout)
  if n_processes % n_model_shards == 0 then
    testing.test(("%d shards, zero %d"):format(n_model_shards, zero), function()
      local deployer = redco.Deployer { seed = 1, n_model_shards = n_model_shards, zero = zero,
        verbose = false }
      if zero == 0 then
        check_pictures(deployer, rows_of())
        check_pictures(deployer, rows_of(true, true))
        check_transformers(deployer)
      end
      check_loss(deployer)
      check_inversion(deployer)
      if zero == 3 then check_kohya(deployer, ("/kohya_%d"):format(n_model_shards)) end
    end)
  end
end

testing.finish()
