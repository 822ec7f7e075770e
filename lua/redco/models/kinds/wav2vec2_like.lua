--- Models of sound built as wav2vec 2.0 is. A family is a row of facts, with three classes: one
--- that writes characters (CTC), one that classifies, and one without a head.
local blocks = require "redco.models.layers.blocks"
local ctc = require "redco.models.tasks.ctc"
local encoder = require "redco.models.sound.sound_encoder"
local fail = require "redco.fail"
local losses = require "redco.models.tasks.task_losses"
local tasks = require "redco.models.tasks"
local torch = require "redco.torch"

local defaults = {
  vocab_size = 32,
  hidden_size = 768,
  num_hidden_layers = 12,
  num_attention_heads = 12,
  intermediate_size = 3072,
  hidden_act = "gelu",
  hidden_dropout = 0.1,
  activation_dropout = 0.1,
  attention_dropout = 0.1,
  feat_proj_dropout = 0.0,
  final_dropout = 0.1,
  layerdrop = 0.1,
  initializer_range = 0.02,
  layer_norm_eps = 1e-5,
  feat_extract_norm = "group",
  feat_extract_activation = "gelu",
  conv_dim = { 512, 512, 512, 512, 512, 512, 512 },
  conv_stride = { 5, 2, 2, 2, 2, 2, 2 },
  conv_kernel = { 10, 3, 3, 3, 3, 2, 2 },
  conv_bias = false,
  num_conv_pos_embeddings = 128,
  num_conv_pos_embedding_groups = 16,
  do_stable_layer_norm = false,
  apply_spec_augment = true,
  mask_time_prob = 0.05,
  mask_time_length = 10,
  mask_time_min_masks = 2,
  mask_feature_prob = 0.0,
  mask_feature_length = 10,
  mask_feature_min_masks = 0,
  ctc_loss_reduction = "sum",
  ctc_zero_infinity = false,
  use_weighted_layer_sum = false,
  classifier_proj_size = 256,
  pad_token_id = 0,
  bos_token_id = 1,
  eos_token_id = 2,
}

-- Settings of training without labels, and of classes that are not supported.
local optional = { "num_feat_extract_layers", "feat_quantizer_dropout",
  "num_codevectors_per_group", "num_codevector_groups", "contrastive_logits_temperature",
  "num_negatives", "codevector_dim", "proj_codevector_dim", "diversity_loss_weight", "tdnn_dim",
  "tdnn_kernel", "tdnn_dilation", "xvector_output_dim", "adapter_kernel_size", "adapter_stride",
  "num_adapter_layers", "output_hidden_size", "id2label", "label2id", "num_labels" }

-- The facts of wav2vec 2.0, unless a row has others.
local wav2vec2 = {
  has_feature_norm = function() return true end,
  add_to_attention = function() end,
  -- Returns function(params, x, mask, o) -> function(i, x), the attention of layer i to itself.
  new_attention = function(c)
    local attention = blocks.new_attention(c.num_attention_heads, { q = ".q_proj", k = ".k_proj",
      v = ".v_proj", out = ".out_proj" }, c.attention_dropout)
    return function(params, _, mask, o)
      return function(i, x)
        return attention.to_itself(params, ("encoder.layers.%d.attention"):format(i), x, mask, o)
      end
    end
  end,
}

-- Returns the number of frames of each row, or nil if all are sound.
local function frames_of(c, inputs)
  local mask = inputs.attention_mask
  return mask and encoder.n_frames(c, mask:sum(1))
end

-- The mean over the frames of sound [B, size].
local function mean_of(c, x, inputs)
  local mask = encoder.frame_mask(c, inputs.attention_mask, x:size(1))
  if not mask then return x:mean { 1 } end
  local weights = mask:to(x.dtype):unsqueeze(-1)
  return (x * weights):sum { 1 } / weights:sum { 1 }
end

local function new_classifier(row, facts, shared)
  local architecture, prefix = row.class .. "ForSequenceClassification", row.prefix .. "."
  local result = setmetatable({
    architecture = architecture, task = "audio_classification",
    optional = { "problem_type", unpack(optional) },
    ignored = { "^lm_head%.", unpack(shared.ignored) },
    complete = tasks.complete_labels, new_if_missing = { layer_weights = true },
  }, { __index = shared })
  for _, layer in ipairs { "projector", "classifier" } do
    for _, part in ipairs { ".weight", ".bias" } do result.new_if_missing[layer .. part] = true end
  end

  function result.add_parameters(c, add)
    encoder.add_parameters(facts, c, blocks.add_with_prefix(add, prefix))
    local n, normal = c.num_hidden_layers + 1, blocks.normal(c.initializer_range)
    if c.use_weighted_layer_sum then add("layer_weights", { n }, blocks.constant(1 / n)) end
    blocks.add_linear(add, "projector", c.hidden_size, c.classifier_proj_size, normal)
    blocks.add_linear(add, "classifier", c.classifier_proj_size, c.num_labels, normal)
  end

  function result.head() return "classifier.weight", "classifier.bias" end

  function result.new_forward(c)
    local encode = encoder.new(facts, c)
    return function(params, inputs, o)
      local kept = c.use_weighted_layer_sum and {} or nil
      local x = encode(blocks.with_prefix(params, prefix), inputs, o, kept)
      if not kept then return x end
      local weights = params.layer_weights:softmax(-1):view { -1, 1, 1 }
      return (torch.stack(kept, 1) * weights):sum { 1 }
    end
  end

  function result.new_head_input(c)
    return function(params, hidden, inputs, o)
      return mean_of(c, blocks.linear(params, "projector", hidden, o), inputs)
    end
  end

  -- transformers has no other loss, whatever problem_type says.
  function result.loss(c, logits, inputs, o)
    if not inputs.labels then fail("%s: inputs.labels are missing", architecture) end
    return losses.of_tokens(logits, inputs, c,
      { ignore_index = o.ignore_index, label_smoothing = o.label_smoothing })
  end

  return result
end

local function new_model(row, facts, shared)
  local result = setmetatable({ architecture = row.class .. "Model", task = "features",
    ignored = { "^lm_head%.", "^projector%.", "^classifier%.", "^layer_weights$",
      unpack(shared.ignored) } }, { __index = shared })

  function result.add_parameters(c, add) encoder.add_parameters(facts, c, add) end

  function result.new_functions(c)
    local encode = encoder.new(facts, c)
    return {
      output = function(params, inputs, o) return encode(params, inputs, o) end,
      hidden_states = function(params, inputs, o)
        local kept = {}
        return encode(params, inputs, o, kept), kept
      end,
    }
  end

  return result
end

--- Returns a family. A row has model_type, models, class (the begin of the names of its classes),
--- prefix, `more` defaults, optional, only, and the facts of wav2vec 2.0 that it changes.
return function(row)
  local facts, prefix = setmetatable(row, { __index = wav2vec2 }), row.prefix .. "."
  local shared = {
    model_type = row.model_type, models = row.models, base_model_prefix = row.prefix,
    inputs = { "input_values", "attention_mask" }, check = encoder.check,
    current_name = encoder.current_name,
    defaults = {}, optional = { unpack(optional) },
    only = { add_adapter = false, adapter_attn_dim = false },
    ignored = { "quantizer%.", "^project_q%.", "^project_hid%.", "^label_embs_concat$",
      "^final_proj%." },
  }
  for _, list in ipairs { defaults, row.more or {} } do
    for key, value in pairs(list) do shared.defaults[key] = value end
  end
  for _, key in ipairs(row.optional or {}) do table.insert(shared.optional, key) end
  for key, value in pairs(row.only or {}) do shared.only[key] = value end

  local family = setmetatable({
    architecture = row.class .. "ForCTC", task = "ctc",
    ignored = { "^projector%.", "^classifier%.", "^layer_weights$", unpack(shared.ignored) },
    new_if_missing = { ["lm_head.weight"] = true, ["lm_head.bias"] = true },
  }, { __index = shared })

  function family.add_parameters(c, add)
    encoder.add_parameters(facts, c, blocks.add_with_prefix(add, prefix))
    blocks.add_linear(add, "lm_head", c.hidden_size, c.vocab_size,
      blocks.normal(c.initializer_range))
  end

  function family.head() return "lm_head.weight", "lm_head.bias" end

  function family.new_forward(c)
    local encode = encoder.new(facts, c)
    return function(params, inputs, o)
      return encode(blocks.with_prefix(params, prefix), inputs, o)
    end
  end

  function family.new_head_input(c)
    return function(_, hidden, _, o) return blocks.dropout(hidden, c.final_dropout, o) end
  end

  ctc.complete(family, frames_of)
  family.variants = { family, new_classifier(row, facts, shared), new_model(row, facts, shared) }
  return family
end
