--- MPNet (Song et al., 2020), as Hugging Face's `MPNetForMaskedLM` and other classes: RoBERTa
--- without token types, whose scores add a bias by the distance of two tokens.
local fail = require "redco.fail"
local new_bias = require("redco.models.layers.relative_bias").new
local new_encoder = require "redco.models.kinds.bert_like"

local dropout = { dropout = { "hidden_dropout_prob" } }

-- transformers always uses 32 buckets: the configuration's number only sets the rows of the table.
local n_buckets, max_distance = 32, 128

local relative_bias = {}

function relative_bias.add_parameters(c, prefix, add, init)
  add(prefix .. "encoder.relative_attention_bias.weight",
    { c.relative_attention_num_buckets, c.num_attention_heads }, init)
end

--- Returns function(params, x) -> [1, H, T, T].
function relative_bias.new(_, prefix)
  local name = prefix .. "encoder.relative_attention_bias"
  return function(params, x)
    local of_distance = new_bias(n_buckets, max_distance, { device = x.device, length = x:size(1) })
    return of_distance(params, name)
  end
end

return new_encoder {
  model_type = "mpnet",
  models = "MPNet, all-mpnet-base-v2",
  class = "MPNet",
  prefix = "mpnet",
  pooler = { "first", { linear = "pooler.dense", activation = "tanh" } },
  positions_of_tokens = true,
  relative_bias = relative_bias,
  defaults = {
    vocab_size = 30527,
    hidden_size = 768,
    num_hidden_layers = 12,
    num_attention_heads = 12,
    intermediate_size = 3072,
    hidden_act = "gelu",
    hidden_dropout_prob = 0.1,
    attention_probs_dropout_prob = 0.1,
    max_position_embeddings = 512,
    initializer_range = 0.02,
    layer_norm_eps = 1e-12,
    relative_attention_num_buckets = 32,
    pad_token_id = 1,
    bos_token_id = 0,
    eos_token_id = 2,
    tie_word_embeddings = true,
  },
  only = { pad_token_id = 1 },  -- transformers counts from 1 whatever the configuration has
  names = {
    layer = "encoder.layer.%d.", attention = "attention.attn",
    q = ".q", k = ".k", v = ".v", out = ".o", attention_norm = "attention.LayerNorm",
    up = "intermediate.dense", down = "output.dense", norm = "output.LayerNorm",
  },
  check = function(c)
    if c.relative_attention_num_buckets < n_buckets then
      fail("mpnet: relative_attention_num_buckets is %d, expected at least %d",
        c.relative_attention_num_buckets, n_buckets)
    end
  end,
  tasks = {
    masked_lm = {
      architecture = "MPNetForMaskedLM", bias = "lm_head.bias",
      weight = "mpnet.embeddings.word_embeddings.weight", untied = "lm_head.decoder.weight",
      untied_bias = "lm_head.decoder.bias",
      layers = { { linear = "lm_head.dense", activation = "gelu" },
        { norm = "lm_head.layer_norm" } },
    },
    sequence_classification = {
      architecture = "MPNetForSequenceClassification", head = "classifier.out_proj",
      layers = { "first", dropout, { linear = "classifier.dense", activation = "tanh" }, dropout },
    },
    multiple_choice = {
      architecture = "MPNetForMultipleChoice", head = "classifier",
      layers = { "first", { linear = "mpnet.pooler.dense", activation = "tanh" }, dropout },
    },
    token_classification = {
      architecture = "MPNetForTokenClassification", head = "classifier", layers = { dropout },
    },
    question_answering = {
      architecture = "MPNetForQuestionAnswering", head = "qa_outputs", layers = {},
    },
  },
}
