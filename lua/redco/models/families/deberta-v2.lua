--- DeBERTa-v2 and -v3 (He et al., 2020, 2021), as Hugging Face's `DebertaV2ForMaskedLM` and other
--- classes: BERT whose scores add products with embeddings of relative positions.
local attention = require "redco.models.layers.deberta_attention"
local blocks = require "redco.models.layers.blocks"
local convolution = require "redco.models.layers.deberta_convolution"
local fail = require "redco.fail"
local masks = require "redco.models.layers.masks"
local nn = require "redco.nn"
local tasks = require "redco.models.tasks"
local torch = require "redco.torch"

local hidden_dropout = { dropout = { "hidden_dropout_prob" } }
local pooled = { "first", { dropout = { "pooler_dropout" } },
  { linear = "pooler.dense", activation = "pooler_hidden_act" },
  { dropout = { "cls_dropout", "hidden_dropout_prob" } } }

-- The head of DeBERTa's authors, which always uses the embedding as its last matrix.
local function original_head(c)
  return not c.legacy and {
    bias = "lm_predictions.lm_head.bias", weight = "deberta.embeddings.word_embeddings.weight",
    layers = { { linear = "lm_predictions.lm_head.dense", activation = "hidden_act" },
      { norm = "lm_predictions.lm_head.LayerNorm" } },
  } or nil
end

local deberta = {
  model_type = "deberta-v2",
  models = "DeBERTa-v2, DeBERTa-v3",
  architecture = "DebertaV2Model",
  base_model_prefix = "deberta",
  default_task = "masked_lm",
  size_key = "hidden_size",
  inputs = { "input_ids", "attention_mask", "position_ids", "segment_ids", "token_type_ids" },
  defaults = {
    vocab_size = 128100,
    hidden_size = 1536,
    num_hidden_layers = 24,
    num_attention_heads = 24,
    intermediate_size = 6144,
    hidden_act = "gelu",
    hidden_dropout_prob = 0.1,
    attention_probs_dropout_prob = 0.1,
    max_position_embeddings = 512,
    type_vocab_size = 0,
    initializer_range = 0.02,
    layer_norm_eps = 1e-7,
    relative_attention = false,
    max_relative_positions = -1,
    position_buckets = -1,
    share_att_key = false,
    norm_rel_ebd = "none",
    position_biased_input = true,
    pooler_dropout = 0,
    pooler_hidden_act = "gelu",
    pad_token_id = 0,
    legacy = true,
    tie_word_embeddings = true,
  },
  nullable = { "pad_token_id" },
  optional = { "pos_att_type", "pooler_hidden_size", "embedding_size", "cls_dropout",
    "attention_head_size", "conv_kernel_size", "conv_groups", "conv_act" },
  ignored = { "position_ids$", "^cls%.", "^classifier%.", "^qa_outputs%.", "^pooler%.",
    "^lm_predictions%.", "^mask_predictions%.", "%.position_embeddings%.",
    "%.encoder%.LayerNorm%.", "%.encoder%.rel_embeddings%." },
  tasks = {
    features = tasks.features "DebertaV2",
    masked_lm = {
      architecture = "DebertaV2ForMaskedLM", bias = "cls.predictions.bias",
      weight = "deberta.embeddings.word_embeddings.weight",
      untied = "cls.predictions.decoder.weight",
      untied_bias = "cls.predictions.decoder.bias", variant = original_head,
      layers = { { linear = "cls.predictions.transform.dense", activation = "hidden_act",
        size = "embedding_size" }, { norm = "cls.predictions.transform.LayerNorm" } },
    },
    sequence_classification = {
      architecture = "DebertaV2ForSequenceClassification", head = "classifier", layers = pooled,
    },
    multiple_choice = {
      architecture = "DebertaV2ForMultipleChoice", head = "classifier", layers = pooled,
    },
    token_classification = {
      architecture = "DebertaV2ForTokenClassification", head = "classifier",
      layers = { hidden_dropout },
    },
    question_answering = {
      architecture = "DebertaV2ForQuestionAnswering", head = "qa_outputs", layers = {},
    },
  },
}

local function norms_positions(c)
  return c.relative_attention and c.norm_rel_ebd:lower():find "layer_norm" ~= nil
end

function deberta.check(c)
  blocks.check_multiple(c, "hidden_size", "num_attention_heads")
  local size = c.hidden_size / c.num_attention_heads
  if c.attention_head_size and c.attention_head_size ~= size then
    fail("%s: attention_head_size = %s is not supported, only hidden_size / num_attention_heads "
      .. "= %d", c.model_type, c.attention_head_size, size)
  end
  if c.pooler_hidden_size and c.pooler_hidden_size ~= c.hidden_size then
    fail("%s: pooler_hidden_size (%d) must be hidden_size (%d)", c.model_type,
      c.pooler_hidden_size, c.hidden_size)
  end
  if not c.legacy and (c.embedding_size or c.hidden_size) ~= c.hidden_size then
    fail("%s: embedding_size (%d) must be hidden_size (%d) if legacy is false", c.model_type,
      c.embedding_size, c.hidden_size)
  end
  convolution.check(c)
end

function deberta.add_parameters(c, add)
  local size, normal = c.hidden_size, blocks.normal(c.initializer_range)
  local embedded = c.embedding_size or size
  local function linear(name, n_in, n_out, bias)
    blocks.add_linear(add, "deberta." .. name, n_in, n_out, normal, bias)
  end
  local function norm(name) blocks.add_layer_norm(add, "deberta." .. name, size) end
  add("deberta.embeddings.word_embeddings.weight", { c.vocab_size, embedded },
    blocks.normal_but_padding(c, c.initializer_range))
  local function table_of(name, n)
    if n > 0 then add("deberta.embeddings." .. name .. ".weight", { n, embedded }, normal) end
  end
  table_of("position_embeddings", c.position_biased_input and c.max_position_embeddings or 0)
  table_of("token_type_embeddings", c.type_vocab_size)
  if embedded ~= size then linear("embeddings.embed_proj", embedded, size, false) end
  norm "embeddings.LayerNorm"
  if c.relative_attention then
    add("deberta.encoder.rel_embeddings.weight", { 2 * attention.span_of(c), size }, normal)
  end
  if norms_positions(c) then norm "encoder.LayerNorm" end
  convolution.add_parameters(c, "deberta.encoder.conv", add)
  for i = 0, c.num_hidden_layers - 1 do
    local layer = ("encoder.layer.%d."):format(i)
    attention.add_parameters(c, layer .. "attention.self.", linear, function(name)
      add("deberta." .. name, { size }, blocks.zeros)
    end)
    linear(layer .. "attention.output.dense", size, size)
    norm(layer .. "attention.output.LayerNorm")
    linear(layer .. "intermediate.dense", size, c.intermediate_size)
    linear(layer .. "output.dense", c.intermediate_size, size)
    norm(layer .. "output.LayerNorm")
  end
end

-- Returns the embedded tokens [B, T, size].
local function embedded_tokens(c, params, inputs, o)
  local ids = inputs.input_ids
  blocks.check_length(c, "max_position_embeddings", o, ids)
  local name = "deberta.embeddings."
  local x = blocks.embedding(params, name .. "word_embeddings", ids, blocks.padding_row(c))
  if c.position_biased_input then
    local places = inputs.position_ids and { position_ids = inputs.position_ids } or {}
    x = x + blocks.position_embedding(params, name .. "position_embeddings", places, o, ids)
  end
  if c.type_vocab_size > 0 then
    local types = params[name .. "token_type_embeddings.weight"]
    x = x + (inputs.token_type_ids and torch.embedding(types, inputs.token_type_ids)
      or types:narrow(0, 0, 1):unsqueeze(0))
  end
  if (c.embedding_size or c.hidden_size) ~= c.hidden_size then
    x = blocks.linear(params, name .. "embed_proj", x, o)
  end
  x = blocks.layer_norm(params, name .. "LayerNorm", x, c.layer_norm_eps)
  return blocks.dropout(convolution.without_padding(c, x, inputs), c.hidden_dropout_prob, o)
end

function deberta.new_forward(c)
  local attend = attention.new(c)
  local activation = blocks.activation(c.model_type, c.hidden_act)
  local convolve = convolution.new(c, "deberta.encoder.conv")

  return function(params, inputs, o)
    local function drop(x) return blocks.dropout(x, c.hidden_dropout_prob, o) end
    local function norm(name, x) return blocks.layer_norm(params, name, x, c.layer_norm_eps) end
    local x = embedded_tokens(c, params, inputs, o)
    local embedded = x
    local mask = masks.both_sides(inputs, x)
    local positions = c.relative_attention and params["deberta.encoder.rel_embeddings.weight"]
    if norms_positions(c) then positions = norm("deberta.encoder.LayerNorm", positions) end
    local function apply_layer(layer, y)
      local seen = attend(params, layer .. "attention.self.", y, mask, positions, o)
      seen = blocks.linear(params, layer .. "attention.output.dense", seen, o)
      y = norm(layer .. "attention.output.LayerNorm", y + drop(seen))
      local inner = activation(blocks.linear(params, layer .. "intermediate.dense", y, o))
      return norm(layer .. "output.LayerNorm",
        y + drop(blocks.linear(params, layer .. "output.dense", inner, o)))
    end
    for i = 0, c.num_hidden_layers - 1 do
      x = nn.block(apply_layer, ("deberta.encoder.layer.%d."):format(i), x)
      if i == 0 and convolve then x = convolve(params, embedded, x, inputs, o) end
    end
    return x
  end
end

return deberta
