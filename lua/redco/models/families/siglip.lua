--- SigLIP (Zhai et al., 2023), as Hugging Face's `SiglipModel`: each text and image are a pair or
--- not, which the loss asks of each alone.
local blocks = require "redco.models.blocks"
local contrastive = require "redco.models.contrastive"
local fail = require "redco.fail"
local new_family = require "redco.models.text_and_image"

local siglip = new_family {
  model_type = "siglip",
  models = "SigLIP",
  architecture = "SiglipModel",
  defaults = { initializer_factor = 1.0 },
  text = require "redco.models.families.siglip_text_model",
  image = require "redco.models.families.siglip_vision_model",
  classifier = { architecture = "SiglipForImageClassification", first_patch = 0 },
  ignored = { "position_ids$" },
  loss = contrastive.sigmoid_loss,
}

function siglip.check(c)
  if c.vision_config.vision_use_head == false then
    fail "siglip: vision_use_head = false is not supported, only true"
  end
  local of_text, of_image = c.text_config.projection_size, c.vision_config.hidden_size
  if of_text ~= of_image then
    fail("siglip: text_config's projection_size (%d) differs from vision_config's hidden_size (%d)",
      of_text, of_image)
  end
end

function siglip.add_own_parameters(_, add)
  add("logit_scale", { 1 }, blocks.zeros)
  add("logit_bias", { 1 }, blocks.zeros)
end

return siglip
