--- Encoders built as BERT: learned positions, and a norm after each residual addition. A family is
--- a table of facts: names of parameters, keys of the configuration, and its heads.
local blocks = require "redco.models.blocks"
local fail = require "redco.fail"
local masks = require "redco.models.masks"
local nn = require "redco.nn"
local tasks = require "redco.models.tasks"
local torch = require "redco.torch"

-- The keys of BERT's configuration, by what they mean here.
local bert_keys = {
  size = "hidden_size", layers = "num_hidden_layers", heads = "num_attention_heads",
  inner = "intermediate_size", activation = "hidden_act", dropout = "hidden_dropout_prob",
  attention_dropout = "attention_probs_dropout_prob",
}

-- The names of a layer's parameters in BERT.
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

-- Weights of other heads of transformers, and of old files, which are not read.
local ignored = { "position_ids$", "^pooler%.", "^cls%.", "^classifier%.", "^qa_outputs%.",
  "^lm_head%.", "^pre_classifier%.", "^vocab_[%l_]+%.", "^discriminator_predictions%.",
  "^generator_%l+%.", "^generator_lm_head%.", "^sequence_summary%." }

-- Positions of RoBERTa: tokens count from the one after the padding token; padding has its row. In
-- rows of several sequences they count in each.
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

local function check_length(c, facts, ids)
  local most = c.max_position_embeddings - (facts.positions_of_tokens and c.pad_token_id + 1 or 0)
  if ids:size(1) > most then
    fail("%s: %d tokens are more than the model's %d positions (max_position_embeddings is %d)",
      c.model_type, ids:size(1), most, c.max_position_embeddings)
  end
end

-- Returns function(params, inputs, o) -> [B, T, size]
local function new_embeddings(c, facts, size)
  local name, padding_row = facts.prefix .. ".embeddings.", blocks.padding_row(c)
  local eps = c.layer_norm_eps or facts.eps

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
    if c.type_vocab_size then x = x + types(params, inputs) end
    x = blocks.layer_norm(params, name .. "LayerNorm", x + positions(params, inputs, ids), eps)
    x = blocks.dropout(x, c[facts.keys.dropout], o)
    return size == c[facts.keys.size] and x
      or blocks.linear(params, facts.prefix .. ".embeddings_project", x, o)
  end
end

local function add_parameters(c, facts, add)
  local keys, names, prefix = facts.keys, facts.names, facts.prefix .. "."
  local size, normal = c[keys.size], blocks.normal(c.initializer_range)
  local embedded = facts.embedding_size and c[facts.embedding_size] or size
  local with_padding = blocks.normal_but_padding(c, c.initializer_range)
  local function linear(name, n_in, n_out) blocks.add_linear(add, name, n_in, n_out, normal) end
  add(prefix .. "embeddings.word_embeddings.weight", { c.vocab_size, embedded }, with_padding)
  add(prefix .. "embeddings.position_embeddings.weight", { c.max_position_embeddings, embedded },
    facts.positions_of_tokens and with_padding or normal)
  if c.type_vocab_size then
    add(prefix .. "embeddings.token_type_embeddings.weight", { c.type_vocab_size, embedded },
      normal)
  end
  blocks.add_layer_norm(add, prefix .. "embeddings.LayerNorm", embedded)
  if embedded ~= size then linear(prefix .. "embeddings_project", embedded, size) end
  for i = 0, c[keys.layers] - 1 do
    local layer = prefix .. names.layer:format(i)
    for _, part in ipairs { "q", "k", "v", "out" } do
      linear(layer .. names.attention .. names[part], size, size)
    end
    blocks.add_layer_norm(add, layer .. names.attention_norm, size)
    linear(layer .. names.up, size, c[keys.inner])
    linear(layer .. names.down, c[keys.inner], size)
    blocks.add_layer_norm(add, layer .. names.norm, size)
  end
end

local function new_forward(c, facts)
  local keys, names = facts.keys, facts.names
  local embedded = facts.embedding_size and c[facts.embedding_size] or c[keys.size]
  local embed = new_embeddings(c, facts, embedded)
  local attention = blocks.new_attention(c[keys.heads], names, c[keys.attention_dropout])
  local activation = blocks.activation(c.model_type, c[keys.activation])
  local eps = c.layer_norm_eps or facts.eps

  return function(params, inputs, o)
    local function drop(x) return blocks.dropout(x, c[keys.dropout], o) end
    local x = embed(params, inputs, o)
    local mask = { mask = masks.both_sides(inputs, x) }
    local function apply_layer(layer, y)
      local seen = attention.to_itself(params, layer .. names.attention, y, mask, o)
      if not facts.keeps_attention then seen = drop(seen) end
      y = blocks.layer_norm(params, layer .. names.attention_norm, y + seen, eps)
      local inner = activation(blocks.linear(params, layer .. names.up, y, o))
      return blocks.layer_norm(params, layer .. names.norm,
        y + drop(blocks.linear(params, layer .. names.down, inner, o)), eps)
    end
    for i = 0, c[keys.layers] - 1 do
      x = nn.block(apply_layer, facts.prefix .. "." .. names.layer:format(i), x)
    end
    return x
  end
end

-- Names of norms in files of the first versions.
local function current_name(name)
  return (name:gsub("%.gamma$", ".weight"):gsub("%.beta$", ".bias"))
end

--- Returns a family. facts: model_type, models, remarks, class (the begin of the names of its
--- classes), prefix, tasks but that of the model without a head, pooler (the layers that the latter
--- has), and where it differs from BERT: keys, names, defaults, more (further defaults), only,
--- optional, aliases, embedding_size (a key), eps, positions_of_tokens (RoBERTa's), keeps_attention
--- (no dropout of its output).
local function new_family(facts)
  facts.keys, facts.names = facts.keys or bert_keys, facts.names or bert_names
  local defaults = {}
  for key, value in pairs(facts.defaults or bert_defaults) do defaults[key] = value end
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
    optional = facts.optional,
    aliases = facts.aliases,
    only = { is_decoder = false, add_cross_attention = false,
      position_embedding_type = "absolute" },
    ignored = { ("^%s%%.pooler%%."):format(facts.prefix), unpack(ignored) },
    inputs = { "input_ids", "attention_mask", "position_ids", "segment_ids",
      defaults.type_vocab_size and "token_type_ids" or nil },
    current_name = current_name,
  }
  for key, value in pairs(facts.only or {}) do family.only[key] = value end
  for name, row in pairs(facts.tasks) do family.tasks[name] = row end

  function family.check(c)
    blocks.check_multiple(c, facts.keys.size, facts.keys.heads)
    if c.type_vocab_size == 0 then fail("%s: type_vocab_size is 0", c.model_type) end
    local pad = c.pad_token_id
    if facts.positions_of_tokens and not (pad and pad >= 0 and pad < c.max_position_embeddings) then
      fail("%s: pad_token_id is %s, expected a token below max_position_embeddings (%d): positions "
        .. "count from it", c.model_type, pad, c.max_position_embeddings)
    end
  end

  function family.add_parameters(c, add) add_parameters(c, facts, add) end

  function family.new_forward(c) return new_forward(c, facts) end

  return family
end

return new_family
