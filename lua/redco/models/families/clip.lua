--- CLIP (Radford et al., 2021), as Hugging Face's `CLIPModel`: texts and images are compared by the
--- angles between their projected features.
local blocks = require "redco.models.layers.blocks"
local contrastive = require "redco.models.tasks.contrastive"
local fail = require "redco.fail"
local new_family = require "redco.models.kinds.text_and_image"
local text = require "redco.models.families.clip_text_model"
local vision = require "redco.models.families.clip_vision_model"

local clip = new_family {
  model_type = "clip",
  models = "CLIP, OpenCLIP in CLIP's form",
  architecture = "CLIPModel",
  defaults = { projection_dim = 512, logit_scale_init_value = 2.6592, initializer_factor = 1.0 },
  text = text, image = vision,
  project_text = text.tower.projection.new(), project_image = vision.tower.projection.new(),
  classifier = { architecture = "CLIPForImageClassification", first_patch = 1 },
  ignored = { "position_ids$" },
  loss = contrastive.softmax_loss,
}

function clip.check(c)
  local most = 88  -- exp(88) still fits into float32
  if c.logit_scale_init_value > most then
    fail("clip: logit_scale_init_value is %g, expected at most %d", c.logit_scale_init_value, most)
  end
end

function clip.add_own_parameters(c, add)
  for _, part in ipairs { { text.tower, c.text_config }, { vision.tower, c.vision_config } } do
    local projection, config = part[1].projection, part[2]
    -- The deviation uses initializer_factor of the whole configuration, not of the part.
    blocks.add_linear(add, projection.name, config.hidden_size, c.projection_dim,
      blocks.normal(config.hidden_size ^ -0.5 * c.initializer_factor), false)
  end
  add("logit_scale", {}, blocks.constant(c.logit_scale_init_value))
end

return clip
