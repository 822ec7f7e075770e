--- Encoders built as BERT. A family is a table of facts: names of parameters, keys of the
--- configuration, kind of positions, places of norms, and its heads.
local blocks = require "redco.models.layers.blocks"
local encoder_layer = require "redco.models.layers.encoder_layer"
local fail = require "redco.fail"
local masks = require "redco.models.layers.masks"
local nn = require "redco.nn"
local rotary = require "redco.models.layers.rotary"
local tasks = require "redco.models.tasks"
local torch = require "redco.torch"

-- The keys of BERT's configuration, by what they mean here.
local bert_keys = {
  size = "hidden_size", layers = "num_hidden_layers", heads = "num_attention_heads",
  inner = "intermediate_size", activation = "hidden_act", dropout = "hidden_dropout_prob",
  attention_dropout = "attention_probs_dropout_prob",
}

-- The names of a layer's parameters in BERT. A family may have qkv instead of q, k and v, and
-- up_gate instead of up, or gate besides up.
local bert_names = {
  layer = "encoder.layer.%d.", attention = "attention",
  q = ".self.query", k = ".self.key", v = ".self.value", out = ".output.dense",
  attention_norm = "attention.output.LayerNorm",
  up = "intermediate.dense", down = "output.dense", norm = "output.LayerNorm",
}

--- Keys and values of BERT's configuration that its relatives share.
local bert_defaults = {
  vocab_size = 30522,
  hidden_size = 768,
  num_hidden_layers = 12,
  num_attention_heads = 12,
  intermediate_size = 3072,
  hidden_act = "gelu",
  hidden_dropout_prob = 0.1,
  attention_probs_dropout_prob = 0.1,
  max_position_embeddings = 512,
  type_vocab_size = 2,
  initializer_range = 0.02,
  layer_norm_eps = 1e-12,
  pad_token_id = 0,
  tie_word_embeddings = true,
}

-- The facts of BERT. Other families may replace them.
local bert = { keys = bert_keys, names = bert_names, defaults = bert_defaults,
  embedding_norm = "embeddings.LayerNorm", projection = "embeddings_project" }

-- Weights that are not read: those of transformers' other heads, and of old files.
local ignored = { "position_ids$", "^pooler%.", "^cls%.", "^classifier%.", "^qa_outputs%.",
  "^lm_head%.", "^pre_classifier%.", "^vocab_[%l_]+%.", "^discriminator_predictions%.",
  "^generator_%l+%.", "^generator_lm_head%.", "^sequence_summary%." }

-- Positions of RoBERTa: tokens count from pad_token_id + 1, and padding has pad_token_id. In rows
-- of several sequences, each sequence counts from there.
local function positions_of_tokens(c, inputs)
  local ids = inputs.input_ids
  local is_token = ids:ne(c.pad_token_id):to "int64"
  local n = is_token:cumsum(1)
  if inputs.segment_ids then
    local first = torch.arange(ids:size(1), { device = ids.device }) - inputs.position_ids
    n = n - (n - is_token):gather(1, first)
  end
  return n * is_token + c.pad_token_id
end

local is_rotary = encoder_layer.is_rotary

-- Returns the name of the norm behind the embeddings, or nil.
local function embedding_norm_of(c, facts)
  local name = facts.embedding_norm
  if type(name) == "function" then name = name(c) end
  return name and facts.prefix .. "." .. name
end

local function check_length(c, facts, ids)
  if is_rotary(c, facts) then return end
  local most = c.max_position_embeddings - (facts.positions_of_tokens and c.pad_token_id + 1 or 0)
  if ids:size(1) > most then
    fail("%s: %d tokens are more than the model's %d positions (max_position_embeddings is %d)",
      c.model_type, ids:size(1), most, c.max_position_embeddings)
  end
end

local function has_types(c) return (c.type_vocab_size or 0) > 0 end

-- Returns the size of the embeddings, and whether a linear layer converts it to that of the model.
local function embedded_size(c, facts)
  local size = c[facts.keys.size]
  local embedded = facts.embedding_size and c[facts.embedding_size] or size
  return embedded, embedded ~= size or facts.always_projects
end

-- Returns function(params, inputs, o) -> [B, T, size]
local function new_embeddings(c, facts)
  local name, padding_row = facts.prefix .. ".embeddings.", blocks.padding_row(c)
  local eps = c.layer_norm_eps or facts.eps
  local _, is_projected = embedded_size(c, facts)
  local n_tasks = facts.first_task and facts.first_task(c)
  local has_positions, norm = not is_rotary(c, facts), embedding_norm_of(c, facts)
  local scaled = facts.new_scale and facts.new_scale(c)

  local function positions(params, inputs, ids)
    local weight = params[name .. "position_embeddings.weight"]
    if facts.positions_of_tokens then
      local given = not inputs.segment_ids and inputs.position_ids
      return torch.embedding(weight, given or positions_of_tokens(c, inputs), c.pad_token_id)
    end
    if inputs.position_ids then return torch.embedding(weight, inputs.position_ids) end
    return weight:narrow(0, 0, ids:size(1)):unsqueeze(0)
  end

  local function types(params, inputs)
    local weight = params[name .. "token_type_embeddings.weight"]
    if inputs.token_type_ids then return torch.embedding(weight, inputs.token_type_ids) end
    return weight:narrow(0, 0, 1):unsqueeze(0)
  end

  return function(params, inputs, o)
    local ids = inputs.input_ids
    check_length(c, facts, ids)
    local x = blocks.embedding(params, name .. "word_embeddings", ids, padding_row)
    if scaled then x = scaled(x, inputs) end
    if has_types(c) then x = x + types(params, inputs) end
    if has_positions then x = x + positions(params, inputs, ids) end
    if n_tasks then
      x = x + params[name .. "task_type_embeddings.weight"]:narrow(0, 0, 1):unsqueeze(0)
    end
    if norm then x = blocks.layer_norm(params, norm, x, eps) end
    if facts.hides_padding and inputs.attention_mask then
      x = x * inputs.attention_mask:unsqueeze(-1):to(x.dtype)
    end
    if not facts.keeps_embeddings then x = blocks.dropout(x, c[facts.keys.dropout], o) end
    return is_projected and blocks.linear(params, facts.prefix .. "." .. facts.projection, x, o)
      or x
  end
end

-- Returns the names of the layers in their order. Layers with shared parameters have the same name.
local function layers_of(c, facts)
  if facts.layers then return facts.layers(c) end
  local list = {}
  for i = 1, c[facts.keys.layers] do list[i] = facts.names.layer:format(i - 1) end
  return list
end

local function add_parameters(c, facts, add)
  local names, prefix = facts.names, facts.prefix .. "."
  local size, normal = c[facts.keys.size], blocks.normal(c.initializer_range)
  local embedded, is_projected = embedded_size(c, facts)
  local with_padding = blocks.normal_but_padding(c, c.initializer_range)
  local function linear(name, n_in, n_out, bias)
    blocks.add_linear(add, name, n_in, n_out, normal, bias)
  end
  add(prefix .. "embeddings.word_embeddings.weight", { c.vocab_size, embedded }, with_padding)
  if not is_rotary(c, facts) then
    add(prefix .. "embeddings.position_embeddings.weight", { c.max_position_embeddings, embedded },
      facts.positions_of_tokens and with_padding or normal)
  end
  if has_types(c) then
    add(prefix .. "embeddings.token_type_embeddings.weight", { c.type_vocab_size, embedded },
      normal)
  end
  local n_tasks = facts.first_task and facts.first_task(c)
  if n_tasks then
    add(prefix .. "embeddings.task_type_embeddings.weight", { n_tasks, embedded }, normal)
  end
  local norm = embedding_norm_of(c, facts)
  if norm then blocks.add_layer_norm(add, norm, embedded) end
  if is_projected then linear(prefix .. facts.projection, embedded, size) end
  local bias = facts.relative_bias
  if bias then bias.add_parameters(c, prefix, add, normal) end
  local is_added = {}
  for _, name in ipairs(layers_of(c, facts)) do
    if not is_added[name] then
      is_added[name] = true
      encoder_layer.add_parameters(c, facts, prefix .. name, linear)
      blocks.add_layer_norm(add, prefix .. name .. names.attention_norm, size)
      blocks.add_layer_norm(add, prefix .. name .. names.norm, size)
    end
  end
  if facts.last_norm then blocks.add_layer_norm(add, prefix .. facts.last_norm, size) end
  if facts.add_more then facts.add_more(c, prefix, add) end
end

-- Returns function(params, inputs, x, o) -> the mask and angles that all layers' attention reads.
local function new_mask(c, facts)
  local rope = is_rotary(c, facts) and rotary.settings(c.model_type, c, rotary.size(c))
  local bias_of = facts.relative_bias and facts.relative_bias.new(c, facts.prefix .. ".")
  return function(params, inputs, x, o)
    local mask = masks.both_sides(inputs, x)
    if bias_of then
      local bias = bias_of(params, x)
      mask = mask and mask + bias or bias
    end
    -- Positions count padding.
    local places = { position_ids = inputs.position_ids }
    return { mask = mask,
      angles = rope and { rotary.angles(rope, places, o, x) } }
  end
end

local function new_forward(c, facts)
  local names, prefix = facts.names, facts.prefix .. "."
  local embed, mask_of = new_embeddings(c, facts), new_mask(c, facts)
  local attend = encoder_layer.new_attention(c, facts)
  local feed_forward = encoder_layer.new_feed_forward(c, facts)
  local eps, layers = c.layer_norm_eps or facts.eps, layers_of(c, facts)

  -- Appends the input of the first layer and the output of each to the list `kept`, if it is given.
  return function(params, inputs, o, kept)
    local function keep(x) if kept then kept[#kept + 1] = x end end
    local function drop(x) return blocks.dropout(x, c[facts.keys.dropout], o) end
    local x = embed(params, inputs, o)
    local mask = mask_of(params, inputs, x, o)
    local function norm(name, y) return blocks.layer_norm(params, name, y, eps) end
    -- y + f(y). The norm follows the sum, or precedes f if there is also one after all layers.
    local function added(name, y, keeps_output, f)
      local z = f(facts.last_norm and norm(name, y) or y)
      local sum = y + (keeps_output and z or drop(z))
      return facts.last_norm and sum or norm(name, sum)
    end
    local function apply_layer(layer, y)
      y = added(layer .. names.attention_norm, y, facts.keeps_attention, function(z)
        return attend(params, layer .. names.attention, z, mask, o)
      end)
      return added(layer .. names.norm, y, facts.keeps_feed_forward, function(z)
        return feed_forward(params, layer, z, o)
      end)
    end
    keep(x)
    for _, layer in ipairs(layers) do
      x = nn.block(apply_layer, prefix .. layer, x)
      keep(x)
    end
    return facts.last_norm and norm(prefix .. facts.last_norm, x) or x
  end
end

-- Names of norms in files of the first versions.
local function current_name(name)
  return (name:gsub("%.gamma$", ".weight"):gsub("%.beta$", ".bias"))
end

--- Returns a family. facts: model_type, models, remarks, class (how the names of its classes
--- begin), prefix, tasks (without that of the model without a head), pooler (the pooling layers of
--- the model without a head), and the differences to BERT:
---   keys, names, defaults, more (further defaults), only, optional, aliases, ignored, complete,
---   check
---   embedding_size: a key
---   embedding_norm (a name, false, or a function of the configuration), projection: names of the
---     layers behind the embeddings
---   always_projects: whether embeddings of the model's size are projected, too
---   first_task(c): the number of rows of ERNIE's embedding of tasks, or nil
---   may_lack_types: whether type_vocab_size may be 0
---   positions_of_tokens: RoBERTa's; rotary: such positions, or a function of the configuration
---   new_scale(c): function(x, inputs) -> x, which changes the embeddings of words, or nil
---   hides_padding: whether padding begins as zeros
---   add_more(c, prefix, add): parameters that no layer reads
---   relative_bias: has add_parameters and new
---   last_norm: the name of a norm after all layers; those of layers are then before their parts
---   layers: a function of the configuration to their names
---   without_bias: a set of names of linear layers
---   eps, if it is no key
---   keeps_embeddings, keeps_attention, keeps_feed_forward: no dropout of the output
---   drops_inner: dropout within the feed-forward layer
local function new_family(facts)
  facts = setmetatable(facts, { __index = bert })
  local defaults = {}
  for key, value in pairs(facts.defaults) do defaults[key] = value end
  for key, value in pairs(facts.more or {}) do defaults[key] = value end
  local family = {
    model_type = facts.model_type,
    models = facts.models,
    remarks = facts.remarks,
    architecture = facts.class .. "Model",
    base_model_prefix = facts.prefix,
    default_task = "masked_lm",
    tasks = { features = tasks.features(facts.class, facts.pooler) },
    size_key = facts.keys.size,
    defaults = defaults,
    nullable = { "pad_token_id" },
    optional = { unpack(facts.optional or {}) },
    aliases = facts.aliases,
    only = { is_decoder = false, add_cross_attention = false,
      position_embedding_type = not defaults.position_embedding_type and "absolute" or nil },
    ignored = { ("^%s%%.pooler%%."):format(facts.prefix), unpack(ignored) },
    inputs = { "input_ids", "attention_mask", "position_ids", "segment_ids",
      defaults.type_vocab_size and "token_type_ids" or nil },
    current_name = current_name,
  }
  -- transformers rotates whole heads.
  if facts.rotary then family.only.partial_rotary_factor = 1 end
  for key, value in pairs(facts.only or {}) do family.only[key] = value end
  for _, key in ipairs(facts.rotary and { "rope_scaling", "rope_parameters" } or {}) do
    table.insert(family.optional, key)
  end
  for _, pattern in ipairs(facts.ignored or {}) do table.insert(family.ignored, pattern) end
  for name, row in pairs(facts.tasks) do family.tasks[name] = row end

  function family.check(c)
    blocks.check_multiple(c, facts.keys.size, facts.keys.heads)
    if facts.check then facts.check(c) end
    if c.type_vocab_size == 0 and not facts.may_lack_types then
      fail("%s: type_vocab_size is 0", c.model_type)
    end
    local pad = c.pad_token_id
    local counts = facts.positions_of_tokens and not is_rotary(c, facts)
    if counts and not (pad and pad >= 0 and pad < c.max_position_embeddings) then
      fail("%s: pad_token_id is %s, expected a token below max_position_embeddings (%d): positions "
        .. "count from it", c.model_type, pad, c.max_position_embeddings)
    end
  end

  if facts.rotary then
    function family.complete(c)
      if facts.complete then facts.complete(c) end
      rotary.complete(c)
    end
  end

  function family.add_parameters(c, add) add_parameters(c, facts, add) end

  function family.new_forward(c) return new_forward(c, facts) end

  return family
end

return new_family
