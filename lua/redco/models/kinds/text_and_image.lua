--- Models of texts and images that compare features: CLIP and SigLIP. Their calls return logits
--- [images, texts].
local blocks = require "redco.models.layers.blocks"
local complete_config = require "redco.models.config"
local fail = require "redco.fail"
local gather = require("redco.native").gather_micro_batches
local losses = require "redco.models.tasks.task_losses"
local tasks = require "redco.models.tasks"
local torch = require "redco.torch"
local tower = require "redco.models.kinds.tower"

local kinds = { text_config = "text", vision_config = "image" }

-- Completes the configuration of a part. In old folders, KIND_dict overrides its values.
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
      model_type, part.model_type)
  end
  c[kind], c[kind .. "_dict"] = complete_config(part.tower, given, is_file), nil
  c[kind].architectures = given.architectures
end

-- Divides features by their lengths.
local function normalised(x) return x / torch.linalg_vector_norm(x, 2, { -1 }, true) end

local function logits_of(params, texts, images)
  local logits = normalised(images):matmul(normalised(texts):t()) * params.logit_scale:exp()
  return params.logit_bias and logits + params.logit_bias or logits
end

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
    return logits_of(params, functions.get_text_features(params, inputs, o),
      functions.get_image_features(params, inputs, o))
  end

  -- Returns the hidden states of the texts if there are texts, else those of the images.
  function functions.hidden_states(params, inputs, o)
    local kept = {}
    local run = inputs.input_ids and text or image
    return (run(params, inputs, o, kept)), kept
  end

  return functions
end

-- The class that classifies images by the mean of their patches.
local function with_classes(family)
  local facts, image = family.classifier, family.image.tower
  local result = {
    architecture = facts.architecture,
    task = "image_classification",
    inputs = image.inputs,
    optional = { "id2label", "label2id", "num_labels", "problem_type" },
    ignored = { "position_ids$", "^text_model%.", "^%a+_projection%.", "^logit_" },
    new_if_missing = { ["classifier.weight"] = true, ["classifier.bias"] = true },
    loss = losses.of_images(facts.architecture),
    new_functions = false,
  }

  function result.complete(c, is_file)
    family.complete(c, is_file)
    tasks.complete_labels(c)
  end

  function result.add_parameters(c, add)
    tower.add_parameters(image, c.vision_config, add)
    local size = c.vision_config.hidden_size
    blocks.add_linear(add, "classifier", size, c.num_labels,
      blocks.normal(size ^ -0.5 * c.initializer_factor))
  end

  function result.head() return "classifier.weight", "classifier.bias" end

  function result.new_forward(c)
    local run = tower.new(image, c.vision_config)
    return function(params, inputs, o) return (run(params, inputs, o)) end
  end

  function result.new_head_input()
    return function(_, hidden, inputs)
      local mask = inputs.pixel_attention_mask
      if mask then
        local weights = mask:to(hidden.dtype):unsqueeze(-1)
        return (hidden * weights):sum { 1 } / weights:sum { 1 }
      end
      return hidden:narrow(1, facts.first_patch, hidden:size(1) - facts.first_patch):mean { 1 }
    end
  end

  return setmetatable(result, { __index = family })
end

--- Returns a family. facts:
---   model_type, architecture, defaults, loss, ignored
---   text, image: families of towers
---   classifier: of the class that classifies images, the architecture, and the place of the first
---     token that is a patch
---   project_text, project_image: functions(params, features, o), or nil
--- It needs add_own_parameters(c, add), of what belongs to neither tower.
return function(facts)
  local family = {
    base_model_prefix = facts.model_type,
    task = "similarity",
    inputs = { "input_ids", "attention_mask", "position_ids", unpack(facts.image.inputs) },
    nullable = { "text_config", "vision_config" },
    defaults = { text_config = {}, vision_config = {} },
  }
  for key, value in pairs(facts) do
    if key ~= "defaults" then family[key] = value end
  end
  for key, value in pairs(facts.defaults) do family.defaults[key] = value end
  family.variants = { family, with_classes(family) }

  function family.config_parts()
    return { text_config = family.text.tower, vision_config = family.image.tower }
  end

  function family.complete(c, is_file)
    for kind in pairs(kinds) do complete_part(family, c, kind, is_file) end
  end

  function family.add_parameters(c, add)
    tower.add_parameters(family.text.tower, c.text_config, add)
    tower.add_parameters(family.image.tower, c.vision_config, add)
    family.add_own_parameters(c, add)
  end

  function family.new_functions(c) return functions_of(family, c) end

  --- The logits of all micro-batches, for the loss.
  function family.compare(model, params, inputs, o)
    return logits_of(params, gather(model.get_text_features(params, inputs, o)),
      gather(model.get_image_features(params, inputs, o)))
  end

  return family
end
