--- Whisper's encoder with classes, as Hugging Face's `WhisperForAudioClassification`: a projection,
--- the mean over time, and the last layer. Its parameters have no prefix.
local blocks = require "redco.models.layers.blocks"
local fail = require "redco.fail"
local losses = require "redco.models.tasks.task_losses"
local tasks = require "redco.models.tasks"
local torch = require "redco.torch"

--- Returns the variant of the family `whisper`.
return function(whisper)
  local result = {
    architecture = "WhisperForAudioClassification",
    base_model_prefix = "model",
    inputs = { "input_features" },
    task = "audio_classification",
    new_encoder = false,
    generate = false,
    buffers = { ["encoder.embed_positions.weight"] = true },
    defaults = { classifier_proj_size = 256, use_weighted_layer_sum = false },
    optional = { "id2label", "label2id", "num_labels", "problem_type", unpack(whisper.optional) },
    ignored = { "^model%.decoder%.", "^decoder%.", "^proj_out%." },
    complete = tasks.complete_labels,
  }
  for key, value in pairs(whisper.defaults) do result.defaults[key] = value end
  result.new_if_missing = { layer_weights = true }
  for _, layer in ipairs { "projector", "classifier" } do
    for _, part in ipairs { ".weight", ".bias" } do result.new_if_missing[layer .. part] = true end
  end

  function result.add_parameters(c, add)
    whisper.add_parameters(c, function(name, ...)
      local own = name:match "^model%.(encoder%..*)$"
      if own then add(own, ...) end
    end)
    if c.use_weighted_layer_sum then
      local n = c.encoder_layers + 1
      add("layer_weights", { n }, blocks.constant(1 / n))
    end
    local normal = blocks.normal(c.init_std)
    blocks.add_linear(add, "projector", c.d_model, c.classifier_proj_size, normal)
    blocks.add_linear(add, "classifier", c.classifier_proj_size, c.num_labels, normal)
  end

  -- transformers has no other loss, whatever problem_type says.
  function result.loss(c, logits, inputs, o)
    if not inputs.labels then fail("%s: inputs.labels are missing", result.architecture) end
    return losses.of_tokens(logits, inputs, c,
      { ignore_index = o.ignore_index, label_smoothing = o.label_smoothing })
  end

  function result.head() return "classifier.weight", "classifier.bias" end

  local function with_prefix(params)
    return setmetatable({}, { __index = function(_, name)
      return params[(name:gsub("^model%.", ""))]
    end })
  end

  -- Returns the encoder's output, or with use_weighted_layer_sum the mean of all layers with
  -- trained weights.
  function result.new_forward(c)
    local encode = whisper.new_encoder(c)
    return function(params, inputs, o)
      local kept = c.use_weighted_layer_sum and {} or nil
      local x = encode(with_prefix(params), inputs, o, kept)
      if kept then
        kept[#kept] = x  -- after the last norm
        local weights = params.layer_weights:softmax(-1):view { -1, 1, 1 }
        x = (torch.stack(kept, 1) * weights):sum { 1 }
      end
      return x
    end
  end

  function result.new_head_input()
    return function(params, hidden, _, o)
      return blocks.linear(params, "projector", hidden, o):mean { 1 }
    end
  end

  return setmetatable(result, { __index = whisper })
end
