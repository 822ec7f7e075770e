--- Families of models that read images alone, with two classes: one that classifies them, and one
--- without a head.
local blocks = require "redco.models.layers.blocks"
local losses = require "redco.models.tasks.task_losses"
local tasks = require "redco.models.tasks"

-- The class without a head, whose calls return one vector for each image.
local function new_model(row, shared)
  local model = { architecture = row.class .. "Model", task = "features",
    ignored = { "^classifier%.", unpack(shared.ignored) }, complete = row.complete_model,
    new_if_missing = row.new_if_missing }

  function model.add_parameters(c, add)
    row.add_parameters(c, add)
    if row.add_pooler then row.add_pooler(c, add) end
  end

  function model.new_functions(c)
    local encode, features = row.new_encoder(c), row.new_features(c)
    return {
      output = function(params, inputs, o)
        return features(params, encode(params, inputs, o), o)
      end,
      hidden_states = function(params, inputs, o)
        local kept = {}
        return encode(params, inputs, o, kept), kept
      end,
    }
  end

  return setmetatable(model, { __index = shared })
end

--- Returns a family. A row has
---   model_type, models, remarks, class (the begin of the names of its classes), prefix, defaults,
---   optional, only, check, ignored, buffers: as a family
---   add_parameters(c, add): those of the encoder
---   new_encoder(c): function(params, inputs, o, kept) -> hidden states; appends them all to `kept`
---   new_features(c): function(params, hidden, o) -> [B, size], of the class without a head, with
---   add_pooler(c, add), complete_model(c) and new_if_missing, or nil
---   classifier: the name of the last layer, by default "classifier"
---   classified(c): the size of what the classifier reads, its initialiser, a function(params,
---   hidden, o) that returns it, where params are those of the encoder, and the initialiser of the
---   classifier's bias, by default zeros. Without it there is only the class without a head
return function(row)
  local prefix = row.prefix .. "."
  local shared = {
    model_type = row.model_type, models = row.models, remarks = row.remarks,
    base_model_prefix = row.prefix, inputs = { "pixel_values" }, check = row.check,
    defaults = row.defaults, only = row.only, nullable = row.nullable, buffers = row.buffers,
    ignored = row.ignored or {},
    optional = { "id2label", "label2id", "num_labels", "problem_type",
      unpack(row.optional or {}) },
  }
  if not row.classified then return new_model(row, shared) end
  local architecture = row.class .. "ForImageClassification"
  local classifier = row.classifier or "classifier"
  local family = setmetatable({
    architecture = architecture, task = "image_classification",
    ignored = { ("^%s%%.pooler%%."):format(row.prefix), unpack(shared.ignored) },
    complete = tasks.complete_labels, loss = losses.of_images(architecture),
  }, { __index = shared })

  function family.add_parameters(c, add)
    row.add_parameters(c, blocks.add_with_prefix(add, prefix))
    local size, init, _, init_bias = row.classified(c)
    blocks.add_linear(add, classifier, size, c.num_labels, init, init_bias)
  end

  function family.head() return classifier .. ".weight", classifier .. ".bias" end

  function family.new_forward(c)
    local encode = row.new_encoder(c)
    return function(params, inputs, o)
      return encode(blocks.with_prefix(params, prefix), inputs, o)
    end
  end

  function family.new_head_input(c)
    local _, _, read = row.classified(c)
    return function(params, hidden, _, o)
      return read(blocks.with_prefix(params, prefix), hidden, o)
    end
  end

  --- The encoder alone, as a part of other models.
  family.encoder = setmetatable({
    architecture = row.class .. "Model",
    ignored = { "^pooler%.", ("^%s%%.pooler%%."):format(row.prefix), "^classifier%." },
    add_parameters = row.add_parameters, new_encoder = row.new_encoder,
  }, { __index = shared })
  family.variants = { family, new_model(row, shared) }
  return family
end
