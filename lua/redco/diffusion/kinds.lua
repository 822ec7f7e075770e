--- The classes of pipelines. Each is a table of facts:
---   parts: the names of its parts in model_index.json; optional: those that may be null
---   model: the part that removes noise
---   says: how it is told what to draw: functions of text.lua or class_labels.lua
---   texts: of text encoders, {encoder, tokenizer, ids (the name of its tokens in a batch), is_t5}
---   last_layers: how many of the last layers of CLIP's text encoders are never read
---   join(pipeline, states, features): what the model reads of lists, one for each text encoder
---   max_sequence_length: of T5, if none is given
---   call(pooled, time_ids, guidance): the options of the model's call
---   is_told_guidance: whether guidance_scale is an input of the model
---   sigmas(steps): of flow matching, before the shift, where they are not the scheduler's
---   settings: other keys of model_index.json that are kept
---   starts_earlier: whether a part of a step that strength leaves is done
---   defaults: of the options of pipeline.generate, where they differ
local class_labels = require "redco.diffusion.class_labels"
local text = require "redco.diffusion.text"
local torch = require "redco.torch"

local first = { encoder = "text_encoder", tokenizer = "tokenizer", ids = "input_ids" }
local second = { encoder = "text_encoder_2", tokenizer = "tokenizer_2", ids = "input_ids_2" }
local third = { encoder = "text_encoder_3", tokenizer = "tokenizer_3", ids = "input_ids_3",
  is_t5 = true }

local sd = {
  parts = { "scheduler", "text_encoder", "tokenizer", "unet", "vae" },
  model = "unet", says = text, texts = { first }, last_layers = 0,
  join = function(_, states) return states[1] end,
  settings = { "requires_safety_checker" },
  call = function() return {} end,
}

local xl = {
  parts = { "scheduler", "text_encoder", "text_encoder_2", "tokenizer", "tokenizer_2", "unet",
    "vae" },
  model = "unet", says = text, texts = { first, second }, last_layers = 1, has_time_ids = true,
  join = function(_, states, features) return torch.cat(states, -1), features[2] end,
  settings = { "force_zeros_for_empty_prompt", "requires_aesthetics_score", "add_watermarker" },
  call = function(pooled, time_ids) return { text_embeds = pooled, time_ids = time_ids } end,
}

-- SD3 reads CLIP's tokens, padded with zeros to T5's width, and then T5's tokens.
local function clip_and_t5(pipeline, states, features)
  local size, clip = pipeline.transformer.config.joint_attention_dim,
    torch.cat({ states[1], states[2] }, -1)
  local t5 = states[3] or clip:new_zeros { clip:size(0), clip:size(1), size }
  return torch.cat({ torch.constant_pad_nd(clip, { 0, size - clip:size(2) }, 0), t5 }, 1),
    torch.cat(features, -1)
end

local sd3 = {
  parts = { "scheduler", "text_encoder", "text_encoder_2", "text_encoder_3", "tokenizer",
    "tokenizer_2", "tokenizer_3", "transformer", "vae" },
  optional = { text_encoder_3 = true, tokenizer_3 = true },
  model = "transformer", says = text, texts = { first, second, third }, last_layers = 1,
  join = clip_and_t5, max_sequence_length = 256, settings = {}, starts_earlier = true,
  defaults = { num_inference_steps = 28, guidance_scale = 7 },
  call = function(pooled) return { pooled_projections = pooled } end,
}

local flux = {
  parts = { "scheduler", "text_encoder", "text_encoder_2", "tokenizer", "tokenizer_2",
    "transformer", "vae" },
  model = "transformer", says = text, last_layers = 0, is_told_guidance = true,
  texts = { first, { encoder = "text_encoder_2", tokenizer = "tokenizer_2", ids = "input_ids_2",
    is_t5 = true } },
  join = function(_, states, features) return states[2], features[1] end,
  max_sequence_length = 512, settings = {}, starts_earlier = true,
  defaults = { num_inference_steps = 28, guidance_scale = 3.5 },
  call = function(pooled, _, guidance)
    return { pooled_projections = pooled, guidance = guidance }
  end,
  sigmas = function(steps)
    local list = {}
    for i = 1, steps do list[i] = 1 - (i - 1) / steps end
    return list
  end,
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
  FluxPipeline = flux,
}
