--- Tasks: models of a family with another head than its own. A family lists them in `tasks`, by
--- name. A row may be a function of the configuration that a folder or a script gives:
---   architecture: the name of the class in transformers
---   head: the name of the last layer; bias = false if it has none
---   weight, bias: instead, the names of its parameters, the latter if the configuration has
---   bias_key
---   untied: the name of the weight if tie_word_embeddings is false
---   untied_bias: the second name that the bias then has in files. transformers 5 writes two values
---   and uses this one; version 4 has one parameter
---   variant: a function of the configuration that returns another row, or nil
---   layers: of an encoder, the layers before the last one: encoder_heads.lua
---   base_model_prefix: if it differs from the family's
---   prefix: what stands before the names of a family without prefix
---   has_encoder_only: of an encoder-decoder, whether the decoder is not there
---   size: a function of the configuration to the size of what the head reads; by default it is the
---   model's
---   complete_inputs: a function(c, inputs) that returns the inputs with those that are missing
---   has_dropout: whether there is a dropout before the head, where other families have none
---   ignored: weights of a folder that the task does not have
---   is_base: whether it is the model without a head, and its names have no prefix
---   pooler: of such a model, the layers of its pooler, as `layers`
--- The decoder of an encoder-decoder reads the tokens of the encoder, shifted right. The loss of a
--- task is the same for all families. `default_task` of a family without a head of its own is the
--- one it has if nothing says which; `size_key` is the key of its size; `head_inits(c, task)`
--- returns the initialisers of the layers and of the last one. `lm_head` is the name of a decoder's
--- own head, whose task is "causal_lm"; `decoder_parameters` is a pattern of the parameters of an
--- encoder-decoder's decoder; `head_parameters` is a pattern of the other parameters of a family's
--- own head. `variants` lists complete families of the same model_type, each with its `task`.
local blocks = require "redco.models.layers.blocks"
local encoder_heads = require "redco.models.tasks.encoder_heads"
local fail = require "redco.fail"
local losses = require "redco.models.tasks.task_losses"
local torch = require "redco.torch"

local tasks = {}

local encoder_inputs = { "input_ids", "attention_mask" }

--- Completes num_labels of a configuration, by id2label if it has one, and checks problem_type.
function tasks.complete_labels(c)
  local n_labels = 0
  if type(c.id2label or {}) ~= "table" then
    fail("%s: id2label is %s, expected a table", c.model_type, c.id2label)
  end
  for _ in pairs(c.id2label or {}) do n_labels = n_labels + 1 end
  c.num_labels = n_labels > 0 and n_labels or c.num_labels or 2
  if c.problem_type and not losses.problems[c.problem_type] then
    fail("%s: unknown problem_type '%s'; expected multi_label_classification, regression or "
      .. "single_label_classification", c.model_type, c.problem_type)
  end
end

-- Returns the hidden states [B, size] of the last token of each row that is no padding. If a
-- decoder reads the encoder's tokens shifted right, the token is one place further, unless the row
-- ends.
local function of_last_token(hidden, inputs, c)
  local ids, length = inputs.input_ids, hidden:size(1)
  if not c.pad_token_id then
    if ids:size(0) > 1 then
      fail("%s: the configuration has no pad_token_id, by which a batch of several sequences finds "
        .. "the last token of each", c.model_type)
    end
    return hidden:select(1, length - 1)
  end
  local places = torch.arange(ids:size(1), { device = hidden.device })
  local last = (ids:ne(c.pad_token_id) * places):amax { 1 }
  if inputs.decoder_input_ids then last = (last + 1):clamp_max(length - 1) end
  return hidden:gather(1, last:view { -1, 1, 1 }:expand { -1, 1, hidden:size(2) }):squeeze(1)
end

-- For each task: n_outputs; `needs`, the inputs of the loss; `loss`, by default that of a language
-- model; `read`, what the head reads of the hidden states, by default all; has_dropout, before the
-- head; has_choices, for inputs [batch, choices, length]; is_single, if the only output is no
-- dimension of the logits; is_of_row, if a whole row has one output; is_headless.
local kinds = {
  sequence_classification = {
    n_outputs = "num_labels", needs = { "labels" }, loss = losses.of_classes, read = of_last_token,
    is_of_row = true,
  },
  token_classification = {
    n_outputs = "num_labels", needs = { "labels" }, loss = losses.of_tokens, has_dropout = true,
  },
  question_answering = {
    n_outputs = 2, needs = { "start_positions", "end_positions" }, loss = losses.of_spans,
    is_of_row = true,
  },
  masked_lm = {},
  features = { is_headless = true },
  multiple_choice = {
    n_outputs = 1, needs = { "labels" }, loss = losses.of_tokens, has_choices = true,
    is_single = true, is_of_row = true,
  },
  replaced_token_detection = {
    n_outputs = 1, needs = { "labels" }, loss = losses.of_replaced_tokens, is_single = true,
  },
}

--- Returns the task of a model without a head whose class in transformers begins with `name`;
--- `pooler` has the layers of its pooler, or is nil.
function tasks.features(name, pooler)
  return { architecture = name .. "Model", is_base = true, pooler = pooler,
    ignored = { "^score%.", "^classifier%.", "^qa_outputs%." } }
end

--- Returns the tasks of a decoder whose classes in transformers begin with `name`. `heads` has the
--- name of the head of token classification, or nil, and whether there is question answering;
--- `base` is the prefix of its parameters there, if another.
function tasks.of_decoder(name, heads, base)
  return {
    features = tasks.features(name),
    sequence_classification = {
      architecture = name .. "ForSequenceClassification", head = "score", bias = false,
    },
    token_classification = heads.token_classification and {
      architecture = name .. "ForTokenClassification", head = heads.token_classification,
    },
    question_answering = heads.question_answering and {
      architecture = name .. "ForQuestionAnswering", head = "qa_outputs", base_model_prefix = base,
    },
  }
end

--- Returns the names of a family's tasks but that of a decoder's own head, sorted.
function tasks.names(family)
  local names = {}
  for name in pairs(family.tasks or {}) do names[#names + 1] = name end
  for _, variant in ipairs(family.variants or {}) do names[#names + 1] = variant.task end
  table.sort(names)
  return names
end

-- The dropout before a head, by the first of these keys.
local function dropout_of(c)
  return c.classifier_dropout or c.classifier_dropout_rate or c.hidden_dropout or 0.1
end

local function complete(family, c, is_file)
  if family.complete then family.complete(c, is_file) end
  tasks.complete_labels(c)
end

-- Returns the inputs with all choices as rows.
local function with_choices_as_rows(inputs, architecture)
  local shape = inputs.input_ids.shape
  if #shape ~= 3 then
    fail("%s: input_ids are [%s], expected [batch, choices, length]", architecture,
      table.concat(shape, ", "))
  end
  local rows = {}
  for name, value in pairs(inputs) do
    rows[name] = torch.is_tensor(value) and value:dim() == 3 and value:flatten(0, 1) or value
  end
  return rows, { shape[1], shape[2], -1 }
end

local function is_untied(row, c) return row.untied ~= nil and c.tie_word_embeddings == false end

-- Declares the parameters of a head.
local function add_head(family, row, kind, c, task, add)
  local size = row.size and row.size(c) or c[family.size_key] or c.word_embed_proj_dim
    or c.hidden_size or c.n_embd
  local layers_init = blocks.normal(c.initializer_range or c.init_std)
  local last_init = layers_init
  if family.head_inits then layers_init, last_init = family.head_inits(c, task) end
  if kind.is_headless then
    encoder_heads.add_parameters(row.pooler or {}, c, size, layers_init, add)
    return
  end
  if row.layers then
    size = encoder_heads.add_parameters(row.layers, c, size, layers_init, add)
  end
  if row.head then
    blocks.add_linear(add, row.head, size, c[kind.n_outputs] or kind.n_outputs, last_init, row.bias)
    return
  end
  if is_untied(row, c) then add(row.untied, { c.vocab_size, size }, layers_init) end
  if not row.bias_key or c[row.bias_key] then add(row.bias, { c.vocab_size }, blocks.zeros) end
end

-- Sets result.own_name(name), the task's name of a parameter of the family, and result.ignored,
-- patterns of weights that folders may have and the task does not. Returns function(name): whether
-- the task has that parameter of the family.
local function set_names(result, family, general)
  result.base_model_prefix = general.base_model_prefix or family.base_model_prefix
  local pattern = "^" .. family.base_model_prefix .. "%."
  function result.own_name(name)
    if general.prefix then return general.prefix .. name end
    if general.is_base then return (name:gsub(pattern, "")) end
    return (name:gsub(pattern, result.base_model_prefix .. "."))
  end
  local lm_head = ("^%s%%."):format(family.lm_head or "lm_head")
  result.ignored = { lm_head, family.head_parameters or lm_head, unpack(family.ignored or {}) }
  for _, name in ipairs(general.ignored or {}) do table.insert(result.ignored, name) end
  return function(name)
    return not name:find(lm_head)
      and not (family.head_parameters and name:find(family.head_parameters))
      and not (general.has_encoder_only and name:find(family.decoder_parameters or "^decoder%."))
  end
end

-- Sets the keys of the configuration, and the inputs.
local function set_keys(result, family, kind, general)
  if general.has_encoder_only then
    -- For such a model, transformers writes that it is no encoder-decoder.
    result.only = {}
    for key, value in pairs(family.only) do
      if key ~= "is_encoder_decoder" then result.only[key] = value end
    end
  end
  result.inputs, result.labels = {}, kind.needs
  for _, name in ipairs(general.has_encoder_only and encoder_inputs or family.inputs) do
    local is_misread = name == "segment_ids" and kind.is_of_row
    if not is_misread then table.insert(result.inputs, name) end
  end
  result.optional = { "id2label", "label2id", "num_labels", "problem_type", "classifier_dropout",
    unpack(family.optional or {}) }
  function result.complete(c, is_file) complete(family, c, is_file) end
end

-- Sets the functions: the model of the family, the input of the head, and the loss.
local function set_functions(result, family, kind, general, row_for)
  local function with_own_names(params)
    return setmetatable({}, {
      __index = function(_, name) return params[result.own_name(name)] end,
    })
  end

  result.decodes_inputs = family.new_encoder ~= nil
  result.new_encoder = family.new_encoder and not general.has_encoder_only and function(c)
    local encode = family.new_encoder(c)
    return function(params, ...) return encode(with_own_names(params), ...) end
  end

  function result.new_forward(c)
    local forward = general.has_encoder_only and family.new_encoder(c) or family.new_forward(c)
    return function(params, inputs, o, memory)
      if kind.has_choices then inputs = with_choices_as_rows(inputs, result.architecture) end
      if general.complete_inputs then inputs = general.complete_inputs(c, inputs) end
      return forward(with_own_names(params), inputs, o, memory)
    end
  end

  function result.new_head_input(c)
    local steps = row_for(c).layers
    local layers = steps and encoder_heads.new_forward(steps, c)
    return function(params, hidden, inputs, o)
      local shape
      if kind.has_choices then
        inputs, shape = with_choices_as_rows(inputs, result.architecture)
      end
      if layers then
        hidden = layers(params, hidden, o, inputs)
        return shape and hidden:view(shape) or hidden
      end
      if kind.has_dropout or general.has_dropout then
        hidden = blocks.dropout(hidden, dropout_of(c), o)
      end
      return kind.read and kind.read(hidden, inputs, c) or hidden
    end
  end

  result.new_pooler = general.pooler and function(c)
    local layers = encoder_heads.new_forward(general.pooler, c)
    return function(params, hidden, inputs, o) return layers(params, hidden, o, inputs) end
  end

  result.loss = kind.loss and function(c, logits, inputs, o)
    for _, name in ipairs(kind.needs) do
      if not inputs[name] then fail("%s: inputs.%s are missing", result.architecture, name) end
    end
    return kind.loss(logits, inputs, c, { ignore_index = o.ignore_index,
      label_smoothing = o.label_smoothing })
  end
end

--- Returns the family with the head of this task, by its row `general`.
local function with_head(family, task, general)
  local kind = kinds[task]
  local result = { task = task, architecture = general.architecture, new_if_missing = {},
    is_single = kind.is_single }
  local function row_for(c) return general.variant and general.variant(c) or general end
  local is_kept = set_names(result, family, general)
  set_keys(result, family, kind, general)
  set_functions(result, family, kind, general, row_for)

  function result.add_parameters(c, add)
    family.add_parameters(c, function(name, ...)
      if is_kept(name) then add(result.own_name(name), ...) end
    end)
    add_head(family, row_for(c), kind, c, task, function(name, ...)
      result.new_if_missing[name] = true
      add(name, ...)
    end)
  end

  result.head = not kind.is_headless and function(c)
    local row = row_for(c)
    local weight = is_untied(row, c) and row.untied or row.weight or row.head .. ".weight"
    local bias = row.bias ~= false and (row.bias or row.head .. ".bias") or nil
    return weight, (not row.bias_key or c[row.bias_key]) and bias or nil
  end

  function result.copies(c)
    local row = row_for(c)
    return is_untied(row, c) and row.untied_bias and { [row.untied_bias] = row.bias } or {}
  end

  function result.logits_cap() end

  function result.router_loss() end

  return setmetatable(result, { __index = family })
end

-- ColBERT's own class: the model without a head, and a linear layer over tokens
-- (sentence_dense.lua).
local colbert = { architecture = "HF_ColBERT" }

--- Returns the name of the task of the family's own head, or nil if it has none.
function tasks.own(family)
  if family.default_task then return nil end
  return not family.new_encoder and family.architecture:find "LM" and "causal_lm" or nil
end

--- Returns the family for a task. Without a task it is that of the architecture that the
--- configuration names.
function tasks.choose(family, task, config)
  local architecture = type(config.architectures) == "table" and config.architectures[1]
  for _, variant in ipairs(family.variants or {}) do
    if task == variant.task or not task and variant.architecture == architecture then
      return variant
    end
  end
  if architecture == colbert.architecture and (task or "features") == "features" then
    local result = with_head(family, "features", colbert)
    result.is_colbert = true
    return result
  end
  for name, row in pairs(family.tasks or {}) do
    if type(row) == "function" then row = row(config) end
    if task == name or not task and row.architecture == architecture then
      return with_head(family, name, row)
    end
  end
  if not task and family.default_task then
    return with_head(family, family.default_task, family.tasks[family.default_task])
  end
  local own = tasks.own(family)
  if task and task ~= own then
    local names = tasks.names(family)
    if own then names[#names + 1] = own end
    fail("%s: unknown task '%s'%s", family.model_type, task, #names > 0
      and "; expected " .. table.concat(names, ", ") or ": the family has only one")
  end
  return family
end

return tasks
