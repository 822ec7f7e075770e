--- SigLIP's model of images (Zhai et al., 2023), as Hugging Face's `SiglipVisionModel`.
local blocks = require "redco.models.layers.blocks"
local inits = require "redco.models.images.siglip_inits"
local layers = require "redco.models.layers.clip_layers"
local new_family = require "redco.models.images.siglip_vision"

return new_family {
  model_type = "siglip_vision_model",
  models = "the images' half of SigLIP",
  architecture = "SiglipVisionModel",
  inputs = { "pixel_values" },
  more = { image_size = 224 },
  add_embeddings = function(c, add)
    local size, patch = c.hidden_size, c.patch_size
    blocks.add_convolution(add, "embeddings.patch_embedding",
      { size, c.num_channels, patch, patch }, inits.lecun(c.num_channels * patch ^ 2))
    add("embeddings.position_embedding.weight", { layers.n_patches(c), size },
      blocks.normal(size ^ -0.5))
  end,
  embed = function(c, params, inputs)
    return layers.embed_patches(c, params, inputs)
      + params["embeddings.position_embedding.weight"]:unsqueeze(0), {}
  end,
}
