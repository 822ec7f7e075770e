--- Models of texts and images that compare features: CLIP and SigLIP. Their calls return logits
--- [images, texts].
local complete_config = require "redco.models.config"
local fail = require "redco.fail"
local torch = require "redco.torch"
local tower = require "redco.models.tower"

local kinds = { text_config = "text", vision_config = "image" }

-- Completes the configuration of a part. Old folders have other values for it in KIND_dict.
local function complete_part(family, c, kind, is_file)
  local part, given, old = family[kinds[kind]], c[kind], c[kind .. "_dict"]
  given = given or {}
  if type(given) ~= "table" or old ~= nil and type(old) ~= "table" then
    fail("%s: the configuration's %s is no table", c.model_type, kind)
  end
  for key, value in pairs(old or {}) do given[key] = value end
  local model_type = given.model_type
  if model_type ~= nil and model_type ~= part.model_type and model_type ~= family.model_type then
    fail("%s: its %s has model_type '%s', only '%s' is supported", family.model_type, kind,
      tostring(model_type), part.model_type)
  end
  c[kind], c[kind .. "_dict"] = complete_config(part.tower, given, is_file), nil
  c[kind].architectures = given.architectures
end

-- Divides features by their lengths.
local function normalised(x) return x / torch.linalg_vector_norm(x, 2, { -1 }, true) end

local function functions_of(family, c)
  local text = tower.new(family.text.tower, c.text_config)
  local image = tower.new(family.image.tower, c.vision_config)
  local functions = {}

  function functions.get_text_features(params, inputs, o)
    local _, features = text(params, inputs, o)
    return family.project_text and family.project_text(params, features, o) or features
  end

  function functions.get_image_features(params, inputs, o)
    local _, features = image(params, inputs, o)
    return family.project_image and family.project_image(params, features, o) or features
  end

  function functions.output(params, inputs, o)
    local texts = normalised(functions.get_text_features(params, inputs, o))
    local images = normalised(functions.get_image_features(params, inputs, o))
    local logits = images:matmul(texts:t()) * params.logit_scale:exp()
    return params.logit_bias and logits + params.logit_bias or logits
  end

  -- Of the texts if there are some, else of the images.
  function functions.hidden_states(params, inputs, o)
    local kept = {}
    local run = inputs.input_ids and text or image
    return (run(params, inputs, o, kept)), kept
  end

  return functions
end

--- Returns a family. facts: model_type, architecture, text and image (families of towers),
--- defaults, loss, ignored, project_text and project_image (functions(params, features, o), or
--- nil). It needs add_own_parameters(c, add), of what belongs to neither tower.
return function(facts)
  local family = {
    base_model_prefix = facts.model_type,
    task = "similarity",
    nullable = { "text_config", "vision_config" },
    defaults = { text_config = {}, vision_config = {} },
  }
  for key, value in pairs(facts) do
    if key ~= "defaults" then family[key] = value end
  end
  for key, value in pairs(facts.defaults) do family.defaults[key] = value end
  family.variants = { family }

  function family.complete(c, is_file)
    for kind in pairs(kinds) do complete_part(family, c, kind, is_file) end
  end

  function family.add_parameters(c, add)
    tower.add_parameters(family.text.tower, c.text_config, add)
    tower.add_parameters(family.image.tower, c.vision_config, add)
    family.add_own_parameters(c, add)
  end

  function family.new_functions(c) return functions_of(family, c) end

  return family
end
