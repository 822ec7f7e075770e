--- The help texts of a pipeline's functions, by name. Each begins with the signature.
local registry = require "redco.registry"

local texts = {
  ["Pipeline"] = [[
Pipeline {params, unet: table, transformer: table, vae: table, text_encoder, tokenizer,
  scheduler_config: table, config: table, params_sharding_rules: list of tables}
The parts that make a picture of a text, or of a DiT of a class; either `unet` or `transformer` is
there. Call its functions with a dot. Made by
`redco.diffusion.from_pretrained` and `redco.diffusion.pipeline`.
  params: a tree with the parameters of the models: params.unet, params.vae, params.text_encoder
  scheduler_config: the keys of scheduler_config.json, see `redco.diffusion.scheduler`; a change
    counts from the next call
  config: the contents of model_index.json
  params_sharding_rules: for a Trainer of `params` with n_model_shards: of a UNet they leave some
    convolutions whole, 12 % of Stable Diffusion's parameters, and halve the bytes of a step; of a
    transformer the list is empty]],

  ["Pipeline:__call"] = [[
__call(self, prompts: string or list of strings, {negative_prompt: string or list of strings = nil,
  image: Tensor = nil, mask: Tensor = nil, seed = 0, num_inference_steps: integer = nil,
  guidance_scale: number = nil, guidance_rescale = 0, num_images_per_prompt: integer = 1,
  height: integer = nil, width: integer = nil, strength: number = nil, clip_skip: integer = 0,
  eta = 0, rng = nil, latents: Tensor = nil, scheduler: string or table = nil,
  true_cfg_scale: number = nil, output: string = "images", on_step = nil}) ->
  images [pictures, 3, height, width]
Makes a picture for each prompt with the pipeline's own parameters, and shows its progress on a
terminal. Options and result are those of `Pipeline.generate`, and these:
  image: a picture [3, height, width] to start from, or one for each prompt; uint8, or from 0 to 1
  mask: with an image: the part of it to repaint, [1, height, width], 1 or 255 where it changes]],

  ["Pipeline.generate"] = [[
generate(params, batch, {num_inference_steps: integer = nil, guidance_scale: number = nil,
  guidance_rescale = 0, num_images_per_prompt: integer = 1, height: integer = nil,
  width: integer = nil, strength: number = nil, clip_skip: integer = 0, eta = 0, seed = nil,
  rng = nil, latents: Tensor = nil, scheduler: string or table = nil, true_cfg_scale: number = nil,
  output: string = "images", on_step = nil}) -> images [pictures, 3, height, width]
Removes noise step by step and returns images from 0 to 1; with output = "latents" the latents before
the autoencoder. For a pred_fn. The pictures of one prompt are adjacent.

`batch` is the result of `Pipeline.tokenize`. It may have negative_input_ids, the tokens of what
pictures should not show (default: of the empty text); pixel_values [batch, 3, height, width] from -1
to 1, a picture to start from; and mask [batch, 1, height, width], 1 where that picture is painted
anew. Latents that are NaN raise an error with the number of the step.

A picture depends on the seed, or on the state of `rng`, and on its place in the batch, not on how
many processes share the batch or the model.
  num_inference_steps: 50 by default, 28 with Stable Diffusion 3 and Flux
  guidance_scale: how far to move from the negative prompt; up to 1 it is not used. By default 7.5,
    with Stable Diffusion 3 7, with a DiT 4. A Flux with guidance_embeds is told it, by default 3.5
  true_cfg_scale: of Flux: how far to move from a given negative prompt; not at all if it is nil
  guidance_rescale: a share from 0 to 1 in which guidance keeps the contrast (arXiv 2305.08891)
  height, width: in pixels; the default is the model's sample_size
  strength: of a given picture, the share of the steps that are done; the default is 0.8, with a
    mask 1
  clip_skip: the number of last layers of CLIP's text encoders that are left out, of the prompt only
  eta: DDIM's share of new noise
  latents: the noise to start from, in place of the generator's
  scheduler: a class such as "DDIMScheduler" with the pipeline's other keys, or a whole table
  on_step: on_step(step, steps, latents) is called after each step]],

  ["Pipeline.loss"] = [[
loss(params, batch, {train = false, rng = nil, min_snr_gamma: number = nil, prior_weight: number = 1,
  caption_dropout = 0, noise_offset = 0, clip_skip: integer = 0, timestep_sampling = "uniform",
  logit_mean = 0, logit_std = 1, guidance_scale = 3.5}) -> loss, count
Returns the mean square error of what the model predicts of noise at random timesteps (the noise, the
velocity or the picture, by the scheduler's prediction_type; for flow matching noise - picture), and
the number of examples.

`batch` has what `Pipeline.tokenize` returns, and pixel_values [batch, 3, height, width] from -1 to 1,
or in their place latent_mean and latent_std of `Pipeline.encode_images`, or latents. Computed before
they can be encoder_hidden_states (and text_embeds), noise and timesteps [batch]. `batch.prior` is
another such batch: pictures of the class, whose loss counts prior_weight times (DreamBooth, arXiv
2208.12242).
  min_snr_gamma: weights of the timesteps by arXiv 2303.09556; 5 is usual
  caption_dropout: the share of prompts that training replaces by the empty one, for guidance
  noise_offset: the deviation of noise that is equal in all places of a channel
  timestep_sampling: "logit_normal" draws more timesteps from the middle (Stable Diffusion 3, arXiv
    2403.03206), sigmoid(logit_std * normal + logit_mean) of them from the noisiest
  guidance_scale: what a Flux with guidance_embeds is told]],

  ["Pipeline.encode_images"] = [[
encode_images(params, images [batch, 3, height, width]) -> {latent_mean, latent_std}
Returns the autoencoder's distribution of latents of images from -1 to 1, scaled as the model sees
them. A `redco.Predictor` that calls it once spares the autoencoder in all epochs.]],

  ["Pipeline.tokenize"] = [[
tokenize(prompts: string or list of strings, {max_sequence_length: integer = nil}) -> {input_ids [batch, length]}
Returns the tokens of prompts, padded and cut to the length of the text encoder; a second text
encoder gets input_ids_2, and a third input_ids_3. Of T5 they have max_sequence_length tokens, by
default 256 with Stable Diffusion 3 and 512 with Flux. A prompt that is cut
gives a warning. Of a DiT's pipeline it returns {class_labels [batch]}: `prompts` are numbers of
classes, or names of the pipeline's id2label.]],

  ["Pipeline.encode_text"] = [[
encode_text(params, batch, {train = false, rng = nil, clip_skip: integer = 0}) -> hidden_states [batch, length, size], text_embeds [batch, size]
Returns what the model attends to of the tokens of `Pipeline.tokenize`, and of SDXL, Stable
Diffusion 3 and Flux features of the texts.]],

  ["Pipeline.save_pretrained"] = [[
save_pretrained(dir, {params = pipeline.params, max_shard_size = "10GB"})
Writes a folder that `redco.diffusion.from_pretrained` and diffusers read. Every process must call
it.]],
}

for name, text in pairs(texts) do registry.define(name, text) end

--- Attaches the texts to the functions of a new pipeline.
return function(pipeline)
  for name, text in pairs(texts) do
    local own = rawget(pipeline, name:match "[^.:]+$")
    if own then registry.define(name, text, own) end
  end
end
