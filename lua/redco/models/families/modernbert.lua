--- ModernBERT (Warner et al., 2024), as Hugging Face's `ModernBertForMaskedLM` and other classes:
--- rotary positions, gated layers, norms before each layer, and windows in most layers.
local blocks = require "redco.models.layers.blocks"
local fail = require "redco.fail"
local masks = require "redco.models.layers.masks"
local read_types = require "redco.models.layers.modernbert_types"
local nn = require "redco.nn"
local rotary = require "redco.models.layers.rotary"
local tasks = require "redco.models.tasks"

local head = { linear = "head.dense", activation = "classifier_activation",
  bias = "classifier_bias" }
local norm = { norm = "head.norm", bias = "norm_bias" }
local dropout = { dropout = { "classifier_dropout" } }

local modernbert = {
  model_type = "modernbert",
  models = "ModernBERT",
  architecture = "ModernBertModel",
  base_model_prefix = "model",
  default_task = "masked_lm",
  size_key = "hidden_size",
  inputs = { "input_ids", "attention_mask", "position_ids", "segment_ids" },
  defaults = {
    vocab_size = 50368,
    hidden_size = 768,
    intermediate_size = 1152,
    num_hidden_layers = 22,
    num_attention_heads = 12,
    hidden_activation = "gelu",
    max_position_embeddings = 8192,
    initializer_range = 0.02,
    initializer_cutoff_factor = 2.0,
    norm_eps = 1e-5,
    norm_bias = false,
    pad_token_id = 50283,
    eos_token_id = 50282,
    bos_token_id = 50281,
    cls_token_id = 50281,
    sep_token_id = 50282,
    global_rope_theta = 160000.0,
    attention_bias = false,
    attention_dropout = 0.0,
    global_attn_every_n_layers = 3,
    local_attention = 128,
    local_rope_theta = 10000.0,
    embedding_dropout = 0.0,
    mlp_bias = false,
    mlp_dropout = 0.0,
    decoder_bias = true,
    classifier_pooling = "cls",
    classifier_dropout = 0.0,
    classifier_bias = false,
    classifier_activation = "gelu",
    tie_word_embeddings = true,
  },
  nullable = { "pad_token_id", "local_rope_theta", "initializer_cutoff_factor" },
  -- Settings that change how transformers computes, not the result.
  optional = { "deterministic_flash_attn", "reference_compile", "repad_logits_with_grad",
    "sparse_pred_ignore_index", "sparse_prediction", "layer_types", "rope_parameters" },
  only = { rope_scaling = false },
  ignored = { "^decoder%.", "^head%.", "^classifier%." },
  complete = read_types,
  tasks = {
    features = tasks.features "ModernBert",
    masked_lm = {
      architecture = "ModernBertForMaskedLM", weight = "model.embeddings.tok_embeddings.weight",
      untied = "decoder.weight", bias = "decoder.bias", bias_key = "decoder_bias",
      layers = { head, norm },
    },
    sequence_classification = {
      architecture = "ModernBertForSequenceClassification", head = "classifier",
      layers = { "pooled", head, norm, dropout },
    },
    multiple_choice = {
      architecture = "ModernBertForMultipleChoice", head = "classifier",
      layers = { "pooled tokens", head, norm, dropout },
    },
    token_classification = {
      architecture = "ModernBertForTokenClassification", head = "classifier",
      layers = { head, norm, dropout },
    },
    question_answering = {
      architecture = "ModernBertForQuestionAnswering", head = "classifier",
      layers = { head, norm, dropout },
    },
  },
}

function modernbert.check(c)
  blocks.check_multiple(c, "hidden_size", "num_attention_heads")
  if c.classifier_pooling ~= "cls" and c.classifier_pooling ~= "mean" then
    fail("modernbert: unknown classifier_pooling '%s'; expected cls or mean", c.classifier_pooling)
  end
end

local function normal(c, std)
  local limit = std * math.min(c.initializer_cutoff_factor or 3, 30)
  if limit == 0 then return blocks.zeros end
  return function(t, generator)
    return nn.init.trunc_normal_(t, { std = std, a = -limit, b = limit, generator = generator })
  end
end

-- Returns the initialiser of layers that add to the residual stream.
local function outer_normal(c)
  return normal(c, c.initializer_range / math.sqrt(2 * c.num_hidden_layers))
end

function modernbert.head_inits(c)
  return outer_normal(c), normal(c, 1 / math.sqrt(c.hidden_size))
end

function modernbert.add_parameters(c, add)
  local size, inner, outer = c.hidden_size, normal(c, c.initializer_range), outer_normal(c)
  local function add_norm(name)
    add(name .. ".weight", { size }, blocks.ones)
    if c.norm_bias then add(name .. ".bias", { size }, blocks.zeros) end
  end
  add("model.embeddings.tok_embeddings.weight", { c.vocab_size, size }, inner)
  add_norm "model.embeddings.norm"
  for i = 0, c.num_hidden_layers - 1 do
    local layer = ("model.layers.%d."):format(i)
    if i > 0 then add_norm(layer .. "attn_norm") end
    blocks.add_linear(add, layer .. "attn.Wqkv", size, 3 * size, inner, c.attention_bias)
    blocks.add_linear(add, layer .. "attn.Wo", size, size, outer, c.attention_bias)
    add_norm(layer .. "mlp_norm")
    blocks.add_linear(add, layer .. "mlp.Wi", size, 2 * c.intermediate_size, inner, c.mlp_bias)
    blocks.add_linear(add, layer .. "mlp.Wo", c.intermediate_size, size, outer, c.mlp_bias)
  end
  add_norm "model.final_norm"
end

function modernbert.new_forward(c)
  local n_heads, size = c.num_attention_heads, c.hidden_size / c.num_attention_heads
  local activation = blocks.activation("modernbert", c.hidden_activation)
  local padding_row, window = blocks.padding_row(c), math.floor(c.local_attention / 2)
  local function rope(theta)
    return rotary.settings("modernbert",
      { rope_theta = theta, max_position_embeddings = c.max_position_embeddings }, size)
  end
  local ropes = { full = rope(c.global_rope_theta),
    near = rope(c.local_rope_theta or c.global_rope_theta) }

  local function attend(params, name, x, mask, angles, o)
    local y = blocks.linear(params, name .. ".Wqkv", x, o)
      :view { x:size(0), x:size(1), 3, n_heads, size }
    local q, k, v = unpack(y:transpose(1, 3):unbind(2))
    q, k = rotary.turn_halves(q, unpack(angles)), rotary.turn_halves(k, unpack(angles))
    local seen = blocks.attention(q, k, v, { mask = mask, dropout = c.attention_dropout }, o)
    return blocks.dropout(blocks.linear(params, name .. ".Wo", seen, o), c.attention_dropout, o)
  end

  local function feed_forward(params, name, x, o)
    local y, gate = unpack(blocks.linear(params, name .. ".Wi", x, o):chunk(2, -1))
    y = blocks.dropout(activation(y) * gate, c.mlp_dropout, o)
    return blocks.linear(params, name .. ".Wo", y, o)
  end

  return function(params, inputs, o)
    local ids = inputs.input_ids
    blocks.check_length(c, "max_position_embeddings", o, ids)
    local function normed(name, x) return blocks.layer_norm(params, name, x, c.norm_eps) end
    local x = normed("model.embeddings.norm",
      blocks.embedding(params, "model.embeddings.tok_embeddings", ids, padding_row))
    x = blocks.dropout(x, c.embedding_dropout, o)
    -- Positions count padding.
    local places, mask_of, angles = { position_ids = inputs.position_ids }, {}, {}
    mask_of.full = masks.both_sides(inputs, x)
    mask_of.near = masks.both_sides(inputs, x, window)
    for kind, r in pairs(ropes) do
      angles[kind] = { rotary.angles(r, places, o, x) }
    end
    local function apply_layer(i, input)
      local layer = ("model.layers.%d."):format(i)
      local kind = i % c.global_attn_every_n_layers == 0 and "full" or "near"
      local y = i > 0 and normed(layer .. "attn_norm", input) or input
      y = input + attend(params, layer .. "attn", y, mask_of[kind], angles[kind], o)
      return y + feed_forward(params, layer .. "mlp", normed(layer .. "mlp_norm", y), o)
    end
    for i = 0, c.num_hidden_layers - 1 do x = nn.block(apply_layer, i, x) end
    return normed("model.final_norm", x)
  end
end

return modernbert
