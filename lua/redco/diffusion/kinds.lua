--- The classes of pipelines. Each is a table of facts:
---   parts: the names of its parts in model_index.json; optional: those that may be null
---   model: the part that removes noise
---   says: how it is told what to draw: functions of text.lua or class_labels.lua
---   texts: of text encoders, {encoder, tokenizer, ids (the name of its tokens in a batch), is_t5}
---   last_layers: how many of the last layers of CLIP's text encoders are never read
---   call(pooled, time_ids): the options of the model's call
---   settings: other keys of model_index.json that are kept
---   starts_earlier: whether a part of a step that strength leaves is done
---   defaults: of the options of pipeline.generate, where they differ
local class_labels = require "redco.diffusion.class_labels"
local text = require "redco.diffusion.text"

local first = { encoder = "text_encoder", tokenizer = "tokenizer", ids = "input_ids" }
local second = { encoder = "text_encoder_2", tokenizer = "tokenizer_2", ids = "input_ids_2" }
local third = { encoder = "text_encoder_3", tokenizer = "tokenizer_3", ids = "input_ids_3",
  is_t5 = true }

local sd = {
  parts = { "scheduler", "text_encoder", "tokenizer", "unet", "vae" },
  model = "unet", says = text, texts = { first }, last_layers = 0,
  settings = { "requires_safety_checker" },
  call = function() return {} end,
}

local xl = {
  parts = { "scheduler", "text_encoder", "text_encoder_2", "tokenizer", "tokenizer_2", "unet",
    "vae" },
  model = "unet", says = text, texts = { first, second }, last_layers = 1, has_time_ids = true,
  settings = { "force_zeros_for_empty_prompt", "requires_aesthetics_score", "add_watermarker" },
  call = function(pooled, time_ids) return { text_embeds = pooled, time_ids = time_ids } end,
}

local sd3 = {
  parts = { "scheduler", "text_encoder", "text_encoder_2", "text_encoder_3", "tokenizer",
    "tokenizer_2", "tokenizer_3", "transformer", "vae" },
  optional = { text_encoder_3 = true, tokenizer_3 = true },
  model = "transformer", says = text, texts = { first, second, third }, last_layers = 1,
  settings = {}, starts_earlier = true,
  defaults = { num_inference_steps = 28, guidance_scale = 7 },
  call = function(pooled) return { pooled_projections = pooled } end,
}

local dit = {
  parts = { "scheduler", "transformer", "vae" },
  model = "transformer", says = class_labels, settings = { "id2label" },
  defaults = { guidance_scale = 4 },
  call = function() return {} end,
}

return {
  StableDiffusionPipeline = sd, StableDiffusionImg2ImgPipeline = sd,
  StableDiffusionInpaintPipeline = sd, StableDiffusionXLPipeline = xl,
  StableDiffusionXLImg2ImgPipeline = xl, StableDiffusionXLInpaintPipeline = xl,
  StableDiffusion3Pipeline = sd3, StableDiffusion3Img2ImgPipeline = sd3, DiTPipeline = dit,
}
