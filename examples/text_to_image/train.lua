-- Text to image: a Stable Diffusion learns to paint what words say. From nothing on emoji, from the
-- folder of a published one on other pictures, or with DreamBooth on a few pictures of one thing.
local redco = require "redco"
local torch = redco.torch

local o = redco.options {
  data = "",  -- a folder of pictures with metadata.jsonl {"file_name", "text"}; "": emoji
  n_emoji = 60,
  model_dir = "",  -- a pipeline's folder to start from; "": a new one of the shape below
  instance_prompt = "",  -- DreamBooth: the caption of all pictures, with a rare word for the thing
  class_prompt = "",  -- and of its class, so that the model does not forget what others look like
  n_class_images = 32,
  prompts = "",  -- separated by semicolons, to paint at the end; "": captions of the data
  workdir = "workdir",
  resume = false,  -- continue from the newest checkpoint of workdir, if there is one
  seed = 42,
  n_model_shards = 1,
  zero = 0,
  n_epochs = 600,
  max_steps = 0,  -- more than 0 ends the run early
  global_batch_size = 16,
  per_device_batch_size = 16,
  compute_dtype = "float32",
  learning_rate = 0,  -- 0: 1e-3 for a new model, 1e-5 for one from a folder
  caption_dropout = 0.1,
  min_snr_gamma = 5.0,
  random_flip = false,
  resolution = 32,
  vae_steps = 600,  -- of the new autoencoder, before the others
  channels = 32,
  num_inference_steps = 25,
  guidance_scale = 3.0,
}
local data, is_new = redco.script_folder() .. "../image_to_text/data/", o.model_dir == ""

local function emoji()
  local sheet, examples = redco.data.image(data .. "emoji.png"), {}
  local tiles = sheet:view { 3, 38, 32, 37, 32 }:permute { 1, 3, 0, 2, 4 }:reshape { -1, 3, 32, 32 }
  for i, name in redco.data.lines(data .. "captions.txt"):ipairs() do
    if #examples < o.n_emoji and i % 3 == 0 and not name:find " " then
      examples[#examples + 1] = { image = tiles[i - 1], text = name }
    end
  end
  return examples
end

local deployer = redco.Deployer { seed = o.seed, n_model_shards = o.n_model_shards,
  zero = o.zero, workdir = o.workdir }

local function new_pipeline()
  local rng = deployer:gen_rng()
  local tokenizer = redco.Tokenizer.from_pretrained(data .. "../../zero_shot/data/processor")
  local function new(config) return redco.diffusion.from_config(config, { generator = rng }) end
  return redco.diffusion.pipeline {
    tokenizer = tokenizer,
    text_encoder = redco.models.from_config({ model_type = "clip_text_model",
      vocab_size = #tokenizer, hidden_size = 64, intermediate_size = 256,
      num_hidden_layers = 2, num_attention_heads = 4, max_position_embeddings = 16,
      bos_token_id = tokenizer.bos_token_id, eos_token_id = tokenizer.eos_token_id,
      pad_token_id = tokenizer.pad_token_id }, { task = "features", generator = rng }),
    vae = new { _class_name = "AutoencoderKL", sample_size = o.resolution, layers_per_block = 1,
      block_out_channels = { 16, 32 }, norm_num_groups = 8,
      down_block_types = { "DownEncoderBlock2D", "DownEncoderBlock2D" },
      up_block_types = { "UpDecoderBlock2D", "UpDecoderBlock2D" } },
    unet = new { _class_name = "UNet2DConditionModel", sample_size = o.resolution / 2,
      block_out_channels = { o.channels, 2 * o.channels }, layers_per_block = 1,
      norm_num_groups = 8, attention_head_dim = 4, cross_attention_dim = 64,
      down_block_types = { "CrossAttnDownBlock2D", "CrossAttnDownBlock2D" },
      up_block_types = { "CrossAttnUpBlock2D", "CrossAttnUpBlock2D" } },
    scheduler = { _class_name = "DDIMScheduler", beta_start = 0.00085, beta_end = 0.012,
      beta_schedule = "scaled_linear", prediction_type = "v_prediction", clip_sample = false,
      set_alpha_to_one = false, rescale_betas_zero_snr = true, timestep_spacing = "trailing" },
  }
end
local pipeline = is_new and new_pipeline() or redco.diffusion.from_pretrained(o.model_dir)

local edge, half = is_new and o.resolution or pipeline.vae.config.sample_size, { 0.5, 0.5, 0.5 }
local process_images = redco.data.image_processor {
  do_resize = true, size = { shortest_edge = edge }, resample = 2, do_center_crop = true,
  crop_size = { height = edge, width = edge }, image_mean = half, image_std = half,
}

local function collate_fn(examples)
  local images, texts, priors = {}, {}, {}
  for i, example in ipairs(examples) do
    images[i], texts[i], priors[i] = example.image, example.text, example.prior
  end
  local batch = pipeline.tokenize(texts)
  batch.pixel_values, batch.prior = process_images(images), priors[1] and collate_fn(priors)
  return batch
end

-- Paints a picture for each prompt: uint8 [3, height, width].
local function paint(params, prompts)
  return redco.Predictor {
    deployer = deployer, collate_fn = pipeline.tokenize,
    pred_fn = function(rng, p, batch)
      return (255 * pipeline.generate(p, batch, { rng = rng, guidance_scale = o.guidance_scale,
        num_inference_steps = o.num_inference_steps }) + 0.5):to "uint8"
    end,
  }:predict { examples = prompts, params = params, per_device_batch_size = 16 }
end

local train = o.data == "" and emoji() or redco.data.image_folder(o.data)
if o.instance_prompt ~= "" then
  local pictures, class_images = train, {}
  if o.class_prompt ~= "" then
    local prompts = redco.data.dataset(o.n_class_images, function() return o.class_prompt end)
    class_images = paint(pipeline.params, prompts)
  end
  train = redco.data.dataset(math.max(#pictures, #class_images), function(i)
    return { image = pictures[(i - 1) % #pictures + 1].image, text = o.instance_prompt,
      prior = class_images[1] and { image = class_images[(i - 1) % #class_images + 1],
        text = o.class_prompt } }
  end)
end

local ckpt, info = unpack(o.resume and { deployer:load_last_ckpt() } or {})

-- The autoencoder of a new pipeline comes first: mean square error, and little of the divergence.
if is_new and not ckpt then
  local vae = pipeline.vae
  local trainer = redco.Trainer {
    deployer = deployer, collate_fn = collate_fn, params = vae.params,
    loss_fn = function(rng, _, params, batch)
      local mean, logvar = vae.encode(params, batch.pixel_values)
      local noise = torch.empty_like(mean):normal_(0, 1, { generator = rng })
      local decoded = vae.decode(params, mean + (logvar / 2):exp() * noise)
      return (decoded - batch.pixel_values):square():mean()
        + 1e-4 * (mean:square() + logvar:exp() - logvar):mean()
    end,
    optimizer = redco.optim.adamw { learning_rate = 2e-3 },
  }
  trainer:fit { train_examples = train, n_epochs = 10000, max_steps = o.vae_steps,
    global_batch_size = o.global_batch_size, per_device_batch_size = o.per_device_batch_size }
  pipeline.params.vae = trainer.params
end

local schedule = deployer:get_lr_schedule_fn { train_size = #train, n_epochs = o.n_epochs,
  warmup_ratio = 0.02,
  learning_rate = o.learning_rate > 0 and o.learning_rate or is_new and 1e-3 or 1e-5,
  global_batch_size = o.global_batch_size, per_device_batch_size = o.per_device_batch_size }
local optimizer = redco.optim.freeze(redco.optim.chain {
  redco.optim.clip_by_global_norm(1),
  redco.optim.adamw { learning_rate = schedule },
  redco.optim.ema { decay = function(step) return math.min(0.995, (1 + step) / (10 + step)) end },
}, is_new and { "vae.*" } or { "vae.*", "text_encoder*" })
local trainer = redco.Trainer {
  deployer = deployer, collate_fn = collate_fn, optimizer = optimizer,
  params = ckpt and ckpt.params or pipeline.params, opt_state = ckpt and ckpt.opt_state,
  last_ckpt_info = info, compute_dtype = o.compute_dtype, lr_schedule_fn = schedule,
  params_sharding_rules = pipeline.params_sharding_rules,
  loss_fn = function(rng, _, params, batch, is_training)
    if o.random_flip then
      batch.pixel_values = redco.augment.random_horizontal_flip(batch.pixel_values, { rng = rng })
    end
    return pipeline.loss(params, batch, { train = is_training, rng = rng,
      caption_dropout = o.caption_dropout, min_snr_gamma = o.min_snr_gamma })
  end,
}
trainer:fit { train_examples = train, n_epochs = o.n_epochs, max_steps = o.max_steps,
  global_batch_size = o.global_batch_size, per_device_batch_size = o.per_device_batch_size,
  save_last_ckpt = true }

local params = optimizer:averages(trainer.state, trainer.params)
local prompts = {}
for prompt in o.prompts:gmatch "[^;]+" do prompts[#prompts + 1] = prompt:match "^%s*(.-)%s*$" end
for i = 1, o.prompts == "" and math.min(16, #train) or 0 do prompts[i] = train[i].text end
local grid = redco.data.make_grid(torch.stack(paint(params, prompts)), { pad_value = 255 })
pipeline.save_pretrained(o.workdir .. "/model", { params = params })
if deployer.process_id == 0 then
  redco.data.save_image(grid, o.workdir .. "/samples.png",
    { metadata = { Description = table.concat(prompts, "; ") } })
end
deployer:log_info(("painted %s: %s/samples.png; the model is in %s/model"):format(
  table.concat(prompts, ", "), o.workdir, o.workdir))
