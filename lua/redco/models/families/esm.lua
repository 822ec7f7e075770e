--- ESM-1b and ESM-2 (Lin et al., 2023), encoders of proteins, as Hugging Face's `EsmForMaskedLM`
--- and other classes: BERT with norms before the layers, and rotary positions in ESM-2.
local fail = require "redco.fail"
local new_encoder = require "redco.models.kinds.bert_like"
local rotary = require "redco.models.layers.rotary"
local torch = require "redco.torch"

-- The share of the tokens that were masked in training.
local masked_share = 0.15 * 0.8

local frequencies = "rotary_embeddings.inv_freq"
local dropout = { dropout = { "hidden_dropout_prob" } }

local function is_rotary(c) return c.position_embedding_type == "rotary" end

-- Returns a function that makes embeddings of mask tokens zero, and scales the others by the share
-- of tokens in their sequence that are no mask, beside that in training.
local function new_scale(c)
  if not c.token_dropout then return end

  -- Sums [B or 1, T or 1] of numbers [B, T] over the tokens of the same sequence.
  local function sums(numbers, inputs)
    local ids = inputs.segment_ids
    if not ids then return numbers:sum(1, true) end
    local is_same = ids:unsqueeze(2):eq(ids:unsqueeze(1)):to "float32"
    return is_same:matmul(numbers:unsqueeze(2)):squeeze(2)
  end

  return function(x, inputs)
    local is_mask = inputs.input_ids:eq(c.mask_token_id)
    local is_token = inputs.attention_mask
    local n_tokens = sums((is_token and is_token:ne(0) or torch.ones_like(is_mask)):to "float32",
      inputs)
    local share = sums(is_mask:to "float32", inputs) / n_tokens:clamp(1)
    x = x:masked_fill(is_mask:unsqueeze(-1), 0)
    return x * ((1 - masked_share) / (1 - share)):unsqueeze(-1):to(x.dtype)
  end
end

-- transformers reads the frequencies of the file, which may be rounded to 16 bits.
local function complete_by_weights(_, given, weights)
  if not is_rotary(given) then return end
  for _, name in ipairs(weights:keys()) do
    if name:sub(-#frequencies) == frequencies then
      local own = weights:tensor(name):full():float():cpu()
      local usual = torch.tensor(rotary.unscaled(2 * own:size(0), given.rope_theta or 10000),
        { dtype = "float32" })
      if not own:equal(usual) then given.rope_frequencies = own:tolist() end
      return
    end
  end
end

local function add_frequencies(c, prefix, add)
  if not is_rotary(c) then return end
  local size = rotary.head_dim(c)
  add(prefix .. frequencies, { size / 2 }, function(parameter)
    local list = c.rope_frequencies or rotary.unscaled(size, c.rope_theta)
    torch.no_grad(function() parameter:copy_(torch.tensor(list, { dtype = "float32" })) end)
    return parameter
  end)
end

local esm = new_encoder {
  model_type = "esm",
  models = "ESM-1b, ESM-2",
  remarks = "no contacts, no structures (ESMFold)",
  class = "Esm",
  prefix = "esm",
  pooler = { "first", { linear = "pooler.dense", activation = "tanh" } },
  rotary = is_rotary,
  positions_of_tokens = true,
  keeps_embeddings = true,
  hides_padding = true,
  embedding_norm = function(c) return c.emb_layer_norm_before and "embeddings.layer_norm" end,
  last_norm = "encoder.emb_layer_norm_after",
  new_scale = new_scale,
  add_more = add_frequencies,
  defaults = {
    vocab_size = 33,
    hidden_size = 768,
    num_hidden_layers = 12,
    num_attention_heads = 12,
    intermediate_size = 3072,
    hidden_act = "gelu",
    hidden_dropout_prob = 0.1,
    attention_probs_dropout_prob = 0.1,
    max_position_embeddings = 1026,
    rope_theta = 10000,
    position_embedding_type = "absolute",
    emb_layer_norm_before = false,
    token_dropout = false,
    initializer_range = 0.02,
    layer_norm_eps = 1e-12,
    pad_token_id = 1,
    mask_token_id = 32,
    tie_word_embeddings = true,
  },
  optional = { "rope_frequencies", "vocab_list" },
  only = { is_folding_model = false, hidden_act = "gelu" },
  ignored = { "%.self%.rotary_embeddings%.inv_freq$", "contact_head%.regression%." },
  check = function(c)
    local kind = c.position_embedding_type
    if kind ~= "absolute" and kind ~= "rotary" then
      fail("esm: position_embedding_type = '%s' is not supported, only 'absolute' and 'rotary'",
        kind)
    end
  end,
  names = {
    layer = "encoder.layer.%d.", attention = "attention",
    q = ".self.query", k = ".self.key", v = ".self.value", out = ".output.dense",
    attention_norm = "attention.LayerNorm", up = "intermediate.dense", down = "output.dense",
    norm = "LayerNorm",
  },
  tasks = {
    masked_lm = {
      architecture = "EsmForMaskedLM", bias = "lm_head.bias",
      weight = "esm.embeddings.word_embeddings.weight", untied = "lm_head.decoder.weight",
      layers = { { linear = "lm_head.dense", activation = "gelu" },
        { norm = "lm_head.layer_norm" } },
    },
    sequence_classification = {
      architecture = "EsmForSequenceClassification", head = "classifier.out_proj",
      layers = { "first", dropout, { linear = "classifier.dense", activation = "tanh" }, dropout },
    },
    token_classification = {
      architecture = "EsmForTokenClassification", head = "classifier", layers = { dropout },
    },
  },
}

esm.buffers = { ["esm." .. frequencies] = true, [frequencies] = true }
esm.complete_by_weights = complete_by_weights

-- Files have the frequencies in each layer, or in version 5 of transformers in layer "*".
local current_name = esm.current_name
function esm.current_name(name)
  return (current_name(name):gsub("encoder%.layer%.[0*]%.attention%.self%.(rotary_embeddings%.)",
    "%1"))
end

return esm
