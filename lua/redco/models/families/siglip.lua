--- SigLIP (Zhai et al., 2023), as Hugging Face's `SiglipModel`: each text and image are a pair or
--- not, which the loss asks of each alone.
local new_family = require "redco.models.kinds.siglip_like"

return new_family {
  model_type = "siglip",
  models = "SigLIP, SigLIP 2 with a fixed resolution",
  class = "Siglip",
  text = require "redco.models.families.siglip_text_model",
  image = require "redco.models.families.siglip_vision_model",
}
