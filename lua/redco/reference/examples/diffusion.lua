--- redco.diffusion.scheduler
local scheduler = redco.diffusion.scheduler {
  _class_name = "DDIMScheduler", beta_schedule = "scaled_linear",
  beta_start = 0.00085, beta_end = 0.012, clip_sample = false,
}
scheduler:set_timesteps(4)
print(table.concat(scheduler.timesteps, " "))  --> 750 500 250 0
local sample = torch.randn { 1, 4, 8, 8 }
for _, t in ipairs(scheduler.timesteps) do
  local input = scheduler:scale_model_input(sample, t)
  local output = input * 0.1  -- of a model
  sample = scheduler:step(output, t, sample)
end
print(sample.shape)  --> torch.Size([1, 4, 8, 8])

--- Scheduler:set_timesteps (after redco.diffusion.scheduler)
scheduler:set_timesteps(2)
print(table.concat(scheduler.timesteps, " "))  --> 500 0

--- Scheduler:set_begin_index (after redco.diffusion.scheduler)
scheduler:set_timesteps(4):set_begin_index(2)
print(scheduler.timesteps[3])  --> 250

--- Scheduler:scale_model_input (after redco.diffusion.scheduler)
local euler = redco.diffusion.scheduler {
  _class_name = "EulerDiscreteScheduler",
}
euler:set_timesteps(10)
local noise = torch.randn { 1, 4, 8, 8 } * euler.init_noise_sigma
local scaled = euler:scale_model_input(noise, euler.timesteps[1])
print(scaled.shape)  --> torch.Size([1, 4, 8, 8])

--- Scheduler:step (after redco.diffusion.scheduler)
scheduler:set_timesteps(10)
local t = scheduler.timesteps[1]
local noise = torch.randn { 1, 4, 8, 8 }
local before, x0 = scheduler:step(noise * 0.5, t, noise, {
  eta = 1, generator = redco.Rng(0),
})
print(before.shape, x0.shape)
--> torch.Size([1, 4, 8, 8])  torch.Size([1, 4, 8, 8])

--- Scheduler:add_noise (after redco.diffusion.scheduler)
local clean, noise = torch.zeros { 2, 4 }, torch.ones { 2, 4 }
local timesteps = torch.tensor({ 0, 999 }, { dtype = "int64" })
print(scheduler:add_noise(clean, noise, timesteps):select(1, 0))
--> tensor([0.0292, 0.9977])

--- Scheduler:get_velocity (after redco.diffusion.scheduler)
local clean, noise = torch.ones { 1, 2 }, torch.zeros { 1, 2 }
print(scheduler:get_velocity(clean, noise, 999))
--> tensor([[-0.9977, -0.9977]])

--- redco.diffusion.pipeline
local given = redco.diffusion.from_pretrained "stable_diffusion"
local pipeline = redco.diffusion.pipeline {
  unet = given.unet, vae = given.vae, text_encoder = given.text_encoder,
  tokenizer = given.tokenizer,
  scheduler = { _class_name = "DDIMScheduler", clip_sample = false },
}

--- Pipeline:__call (after redco.diffusion.pipeline)
local images = pipeline("a taxi", { num_inference_steps = 2, seed = 1 })
redco.data.save_image(images[0], "taxi.png")
print(images.shape)  --> torch.Size([1, 3, 16, 16])

--- Pipeline.generate (after redco.diffusion.pipeline)
local batch = pipeline.tokenize { "a taxi", "a rose" }
local images = pipeline.generate(pipeline.params, batch, {
  num_inference_steps = 2, guidance_scale = 3, seed = 1,
})
print(images.shape)  --> torch.Size([2, 3, 16, 16])

--- Pipeline.loss (after redco.diffusion.pipeline)
local batch = pipeline.tokenize { "a taxi", "a rose" }
batch.pixel_values = torch.rand { 2, 3, 16, 16 } * 2 - 1
local loss, count = pipeline.loss(pipeline.params, batch, {
  train = true, rng = redco.Rng(0), caption_dropout = 0.1,
})
print(loss:item() > 0, count)  --> true  2

--- Pipeline.encode_images (after redco.diffusion.pipeline)
local images = torch.rand { 2, 3, 16, 16 } * 2 - 1
local latents = pipeline.encode_images(pipeline.params, images)
print(latents.latent_mean.shape)  --> torch.Size([2, 4, 8, 8])

--- Pipeline.tokenize (after redco.diffusion.pipeline)
local batch = pipeline.tokenize { "a taxi", "a rose" }
print(batch.input_ids.shape)  --> torch.Size([2, 12])

--- Pipeline.encode_text (after redco.diffusion.pipeline)
local batch = pipeline.tokenize { "a taxi", "a rose" }
local states = pipeline.encode_text(pipeline.params, batch)
print(states.shape)  --> torch.Size([2, 12, 16])

--- Pipeline.save_pretrained (after redco.diffusion.pipeline)
pipeline.save_pretrained "pipeline"
local again = redco.diffusion.from_pretrained "pipeline"
print(again.class_name)  --> StableDiffusionPipeline

--- redco.diffusion
local pipeline = redco.diffusion.from_pretrained "stable_diffusion"
local images = pipeline("a taxi", { num_inference_steps = 2 })
print(images.shape)  --> torch.Size([1, 3, 16, 16])

--- redco.diffusion.from_pretrained
local pipeline = redco.diffusion.from_pretrained "stable_diffusion"
print(pipeline.unet)
--> UNet2DConditionModel: 52004 parameters in 208 tensors

--- redco.diffusion.from_single_file
local pipeline = redco.diffusion.from_single_file(
  "original.safetensors", "stable_diffusion")
print(pipeline.class_name)  --> StableDiffusionPipeline

--- redco.diffusion.load
local vae = redco.diffusion.load "stable_diffusion/vae"
print(vae.config.scaling_factor)  --> 0.18215

--- redco.diffusion.from_config
local unet = redco.diffusion.from_config({
  _class_name = "UNet2DConditionModel", block_out_channels = { 8, 16 },
  down_block_types = { "CrossAttnDownBlock2D", "DownBlock2D" },
  up_block_types = { "UpBlock2D", "CrossAttnUpBlock2D" },
  cross_attention_dim = 16, norm_num_groups = 4,
}, { generator = torch.Generator(1) })
print(unet.config.layers_per_block)  --> 2

--- redco.diffusion.save_lora
local pipeline = redco.diffusion.from_pretrained "stable_diffusion"
local params = redco.tree.map(function(leaf) return leaf end, pipeline.params)
params.unet = redco.lora.add(params.unet, {
  target_modules = { "to_q", "to_k", "to_v", "to_out.0" }, r = 2,
})
redco.diffusion.save_lora("adapters_of_unet", params, { format = "kohya" })

--- redco.diffusion.load_lora (after redco.diffusion.save_lora)
local again = redco.diffusion.load_lora(pipeline, "adapters_of_unet")
print(redco.tree.count(again) == redco.tree.count(params))  --> true

--- redco.diffusion.add_token
local pipeline = redco.diffusion.from_pretrained "stable_diffusion"
local params = redco.diffusion.add_token(pipeline, "<cat>", {
  initializer = "!", n_vectors = 2,
})
local adamw = redco.optim.adamw { learning_rate = 5e-3 }
local optimizer = redco.optim.freeze(adamw,
  function(name) return not name:find "added_tokens" end)
print(params.text_encoder["text_model.embeddings.added_tokens.weight"].shape)
--> torch.Size([2, 16])

--- redco.diffusion.save_textual_inversion
local pipeline = redco.diffusion.from_pretrained "stable_diffusion"
local params = redco.diffusion.add_token(pipeline, "<cat>", {
  initializer = "!",
})
redco.diffusion.save_textual_inversion(pipeline, "cat", params)

--- redco.diffusion.load_textual_inversion
torch.save({ ["<cat>"] = torch.randn { 2, 16 } }, "cat.safetensors")
local pipeline = redco.diffusion.from_pretrained "stable_diffusion"
pipeline.params = redco.diffusion.load_textual_inversion(
  pipeline, "cat.safetensors")
local images = pipeline("a <cat>", { num_inference_steps = 2 })
print(images.shape)  --> torch.Size([1, 3, 16, 16])

--- Component:__call
local unet = redco.diffusion.load "stable_diffusion/unet"
local noise, text = torch.randn { 2, 4, 8, 8 }, torch.randn { 2, 12, 16 }
print(unet(unet.params, noise, 500, text).shape)
--> torch.Size([2, 4, 8, 8])

--- Component.encode
local vae = redco.diffusion.load "stable_diffusion/vae"
local mean, logvar = vae.encode(vae.params, torch.rand { 1, 3, 16, 16 })
print(mean.shape, logvar.shape)
--> torch.Size([1, 4, 8, 8])  torch.Size([1, 4, 8, 8])

--- Component.decode (after Component.encode)
print(vae.decode(vae.params, mean).shape)  --> torch.Size([1, 3, 16, 16])

--- Component.save_pretrained (after Component.encode)
vae.save_pretrained "vae"
