--- Tasks: models of a family with another head than its own. A family lists them in `tasks`, by
--- name:
---   architecture: the name of the class in transformers
---   head: the name of the last layer; bias = false if it has none
---   base_model_prefix: if it differs from the family's
---   add_parameters(c, add): those of layers between the hidden states and the head, if any
---   new_read(c): function(params, hidden, inputs, o) -> the input of the head, if the task's own
---   is not right
--- The loss of a task is the same for all families. `own_task` of a family is the name of the task
--- of its own head, by default "causal_lm" of decoders; `lm_head` the name of the layer.
local blocks = require "redco.models.blocks"
local fail = require "redco.fail"
local losses = require "redco.models.task_losses"
local torch = require "redco.torch"

local tasks = {}

--- Completes num_labels of a configuration, by id2label if it has one.
function tasks.complete_labels(c)
  local n_labels = 0
  if type(c.id2label or {}) ~= "table" then
    fail("%s: id2label is %s, expected a table", c.model_type, tostring(c.id2label))
  end
  for _ in pairs(c.id2label or {}) do n_labels = n_labels + 1 end
  c.num_labels = n_labels > 0 and n_labels or c.num_labels or 2
end

-- Returns the hidden states [B, size] of the last token of each row that is no padding.
local function of_last_token(hidden, inputs, c)
  local ids, length = inputs.input_ids, hidden:size(1)
  if not c.pad_token_id then
    if ids:size(0) > 1 then
      fail("%s: the configuration has no pad_token_id, by which a batch of several sequences finds "
        .. "the last token of each", c.model_type)
    end
    return hidden:select(1, length - 1)
  end
  local places = torch.arange(length, { device = hidden.device })
  local last = (ids:ne(c.pad_token_id) * places):amax { 1 }
  return hidden:gather(1, last:view { -1, 1, 1 }:expand { -1, 1, hidden:size(2) }):squeeze(1)
end

-- For each task: the number of outputs, what a loss needs of the inputs, the loss, what is read of
-- the hidden states (all if nil), and whether the head is behind a dropout.
local kinds = {
  sequence_classification = {
    n_outputs = "num_labels", needs = { "labels" }, loss = losses.of_classes, read = of_last_token,
  },
  token_classification = {
    n_outputs = "num_labels", needs = { "labels" }, loss = losses.of_tokens, has_dropout = true,
  },
  question_answering = {
    n_outputs = 2, needs = { "start_positions", "end_positions" }, loss = losses.of_spans,
  },
}

--- Returns the tasks of a decoder whose classes in transformers begin with `name`. `heads` has the
--- name of the head of token classification, or nil, and whether there is question answering;
--- `base` is the prefix of its parameters there, if another.
function tasks.of_decoder(name, heads, base)
  return {
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

local function names_of(family)
  local names = {}
  for name in pairs(family.tasks or {}) do names[#names + 1] = name end
  table.sort(names)
  return names
end

-- The dropout before a head, by the first of these keys.
local function dropout_of(c) return c.classifier_dropout or c.hidden_dropout or 0.1 end

local function complete(family, c, is_file)
  if family.complete then family.complete(c, is_file) end
  tasks.complete_labels(c)
  if c.problem_type and not losses.problems[c.problem_type] then
    fail("%s: unknown problem_type '%s'; expected multi_label_classification, regression or "
      .. "single_label_classification", c.model_type, tostring(c.problem_type))
  end
end

--- Returns the family with the head of this task.
local function with_head(family, task)
  local row = family.tasks[task]
  local kind, result = kinds[task], { task = task }
  local weight, bias = row.head .. ".weight", row.bias ~= false and row.head .. ".bias" or nil
  result.architecture = row.architecture
  result.base_model_prefix = row.base_model_prefix or family.base_model_prefix
  local pattern = "^" .. family.base_model_prefix .. "%."
  local function own_name(name) return (name:gsub(pattern, result.base_model_prefix .. ".")) end
  result.own_name = own_name
  result.new_if_missing = { [weight] = true, [bias or weight] = true }
  local lm_head = ("^%s%%."):format(family.lm_head or "lm_head")
  result.ignored = { lm_head, unpack(family.ignored or {}) }
  result.optional = { "id2label", "label2id", "num_labels", "problem_type", "classifier_dropout",
    unpack(family.optional or {}) }

  function result.complete(c, is_file) complete(family, c, is_file) end

  function result.add_parameters(c, add)
    family.add_parameters(c, function(name, ...)
      if not name:find(lm_head) then add(own_name(name), ...) end
    end)
    if row.add_parameters then row.add_parameters(c, add) end
    local n_inputs = c.word_embed_proj_dim or c.hidden_size or c.n_embd
    blocks.add_linear(add, row.head, n_inputs, c[kind.n_outputs] or kind.n_outputs,
      blocks.normal(c.initializer_range or c.init_std), row.bias)
  end

  function result.head() return weight, bias end

  function result.logits_cap() end

  function result.router_loss() end

  function result.new_forward(c)
    local forward, read = family.new_forward(c), row.new_read and row.new_read(c)
    return function(params, inputs, o)
      local hidden = forward(setmetatable({}, { __index = function(_, name)
        return params[own_name(name)]
      end }), inputs, o)
      if read then return read(params, hidden, inputs, o) end
      if kind.has_dropout then hidden = blocks.dropout(hidden, dropout_of(c), o) end
      return kind.read and kind.read(hidden, inputs, c) or hidden
    end
  end

  function result.loss(c, logits, inputs, o)
    for _, name in ipairs(kind.needs) do
      if not inputs[name] then fail("%s: inputs.%s are missing", result.architecture, name) end
    end
    return kind.loss(logits, inputs, c, { ignore_index = o.ignore_index,
      label_smoothing = o.label_smoothing })
  end

  return setmetatable(result, { __index = family })
end

-- Returns the name of the task of the family's own head, or nil if it has none.
local function own_task(family)
  if family.own_task then return family.own_task end
  return not family.new_encoder and family.architecture:find "LM" and "causal_lm" or nil
end

--- Returns the family for a task. Without a task it is that of the architecture that the
--- configuration names.
function tasks.choose(family, task, config)
  local architecture = type(config.architectures) == "table" and config.architectures[1]
  for name, row in pairs(family.tasks or {}) do
    if task == name or not task and row.architecture == architecture then
      return with_head(family, name)
    end
  end
  local own = own_task(family)
  if task and task ~= own then
    local names = names_of(family)
    if own then names[#names + 1] = own end
    fail("%s: unknown task '%s'%s", family.model_type, tostring(task), #names > 0
      and "; expected " .. table.concat(names, ", ") or ": the family has only one")
  end
  return family
end

return tasks
