--- The help texts of the functions of a UNet, a transformer and an autoencoder, by name. Each
--- begins with the signature.
local registry = require "redco.registry"

local texts = {
  ["Component"] = [[
Component {params, config: table}
A UNet, a transformer or an autoencoder of a pipeline. Call its functions with a dot. Made by
`redco.diffusion.load`, `redco.diffusion.from_config` and, as a part of a pipeline,
`redco.diffusion.from_pretrained`.
  params: a flat table of parameters, with diffusers' names
  config: the complete configuration, with diffusers' keys]],

  ["Component:__call"] = [[
__call(self, params, sample [batch, channels, height, width], timesteps: number or Tensor,
  encoder_hidden_states [batch, length, size], {train = false, rng = nil, text_embeds: Tensor = nil,
  time_ids: Tensor = nil, encoder_attention_mask: Tensor = nil, class_labels: Tensor = nil,
  timestep_cond: Tensor = nil, pooled_projections: Tensor = nil,
  guidance: number or Tensor = nil, cache: Cache = nil}) -> like sample
Computes what a UNet or a transformer predicts of the noise in a sample. `timesteps` is a number or
[batch]. A DiT has class_labels, int64 [batch], in place of encoder_hidden_states; the options but
`train` and `rng` are those of a UNet, pooled_projections of Stable Diffusion 3 and Flux, and
guidance of Flux.
  text_embeds: SDXL: features of the text [batch, size], from `Pipeline.encode_text`
  time_ids: SDXL: height, width, top and left of the crop, and height and width wanted [batch, 6]
  encoder_attention_mask: 1 for tokens that are seen, 0 for others [batch, length]
  class_labels: [batch], if the configuration has num_class_embeds
  timestep_cond: [batch, size], if it has time_cond_proj_dim
  pooled_projections: features of the text [batch, size], from `Pipeline.encode_text`
  guidance: the guidance_scale, also [batch], if the configuration has guidance_embeds
  cache: a UNet's, from `redco.models.new_cache`: keeps the keys and values of the text for all
    steps of a sampling]],

  ["Component.encode"] = [[
encode(params, images [batch, channels, height, width]) -> mean [batch, size, h, w],
  logvar [batch, size, h, w]
Returns the mean and the log-variance, from -30 to 20, of an autoencoder's latents of images from
-1 to 1. They are not scaled: see config.scaling_factor.]],

  ["Component.decode"] = [[
decode(params, latents [batch, channels, height, width]) -> images [batch, channels, h, w]
Returns the images of latents that are not scaled.]],

  ["Component.save_pretrained"] = [[
save_pretrained(dir, {params = Component.params, max_shard_size = "10GB"})
Writes a folder that `redco.diffusion.load` and diffusers read. Every process must call it.]],
}

for name, text in pairs(texts) do registry.define(name, text) end

--- Attaches the texts to the functions of a new model.
return function(model)
  for name, text in pairs(texts) do
    local own = rawget(model, name:match "[^.:]+$")
    if own then registry.define(name, text, own) end
  end
end
