--- SigLIP 2 with images of different sizes (Tschannen et al., 2025), as Hugging Face's
--- `Siglip2Model`: SigLIP with another model of images. The folders of SigLIP 2 with a fixed
--- resolution are of type siglip.
local new_family = require "redco.models.kinds.siglip_like"
local text = require "redco.models.families.siglip_text_model"
local tower = require "redco.models.kinds.tower"

local function with(fields, base) return setmetatable(fields, { __index = base }) end

return new_family {
  model_type = "siglip2",
  models = "SigLIP 2 with images of different sizes (naflex)",
  class = "Siglip2",
  text = tower.family(with({ model_type = "siglip2_text_model", architecture = "Siglip2TextModel" },
    text.tower)),
  image = require "redco.models.families.siglip2_vision_model",
}
