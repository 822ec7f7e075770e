--- SigLIP and SigLIP 2: models of pairs of texts and images.
local blocks = require "redco.models.layers.blocks"
local contrastive = require "redco.models.tasks.contrastive"
local fail = require "redco.fail"
local new_family = require "redco.models.kinds.text_and_image"

--- Returns a family. A row has model_type, models, class (the begin of the names of its classes),
--- and `text` and `image`, families of towers.
return function(row)
  local family = new_family {
    model_type = row.model_type,
    models = row.models,
    architecture = row.class .. "Model",
    defaults = { initializer_factor = 1.0 },
    text = row.text,
    image = row.image,
    classifier = { architecture = row.class .. "ForImageClassification", first_patch = 0 },
    ignored = { "position_ids$" },
    loss = contrastive.sigmoid_loss,
  }

  function family.check(c)
    if c.vision_config.vision_use_head == false then
      fail("%s: vision_use_head = false is not supported, only true", c.model_type)
    end
    local of_text, of_image = c.text_config.projection_size, c.vision_config.hidden_size
    if of_text ~= of_image then
      fail("%s: text_config's projection_size (%d) differs from vision_config's hidden_size (%d)",
        c.model_type, of_text, of_image)
    end
  end

  function family.add_own_parameters(_, add)
    add("logit_scale", { 1 }, blocks.zeros)
    add("logit_bias", { 1 }, blocks.zeros)
  end

  return family
end
