--- ALBERT (Lan et al., 2020), as Hugging Face's `AlbertForMaskedLM` and other classes: BERT with
--- smaller embeddings, whose layers share their parameters.
local fail = require "redco.fail"
local new_encoder = require "redco.models.kinds.bert_like"

local dropout = { dropout = { "classifier_dropout_prob" } }
local pooled = { "first", { linear = "albert.pooler", activation = "tanh" }, dropout }

-- Consecutive layers form groups with the same parameters. A layer has inner_group_num inner
-- layers.
local function layers(c)
  local list, n_per_group = {}, c.num_hidden_layers / c.num_hidden_groups
  for i = 0, c.num_hidden_layers - 1 do
    for k = 0, c.inner_group_num - 1 do
      list[#list + 1] = ("encoder.albert_layer_groups.%d.albert_layers.%d."):format(
        math.floor(i / n_per_group), k)
    end
  end
  return list
end

return new_encoder {
  model_type = "albert",
  models = "ALBERT",
  class = "Albert",
  prefix = "albert",
  pooler = { "first", { linear = "pooler", activation = "tanh" } },
  embedding_size = "embedding_size",
  projection = "encoder.embedding_hidden_mapping_in",
  always_projects = true,
  keeps_feed_forward = true,
  layers = layers,
  more = { vocab_size = 30000, embedding_size = 128, hidden_size = 4096, num_hidden_groups = 1,
    num_attention_heads = 64, intermediate_size = 16384, inner_group_num = 1,
    hidden_act = "gelu_new", hidden_dropout_prob = 0, attention_probs_dropout_prob = 0,
    classifier_dropout_prob = 0.1, bos_token_id = 2, eos_token_id = 3 },
  names = {
    attention = "attention", q = ".query", k = ".key", v = ".value", out = ".dense",
    attention_norm = "attention.LayerNorm", up = "ffn", down = "ffn_output",
    norm = "full_layer_layer_norm",
  },
  ignored = { "^predictions%.", "^sop_classifier%." },
  check = function(c)
    if c.num_hidden_groups > c.num_hidden_layers then
      fail("albert: num_hidden_groups (%d) must be at most num_hidden_layers (%d)",
        c.num_hidden_groups, c.num_hidden_layers)
    end
  end,
  tasks = {
    masked_lm = {
      architecture = "AlbertForMaskedLM", bias = "predictions.bias",
      weight = "albert.embeddings.word_embeddings.weight", untied = "predictions.decoder.weight",
      untied_bias = "predictions.decoder.bias",
      layers = {
        { linear = "predictions.dense", activation = "hidden_act", size = "embedding_size" },
        { norm = "predictions.LayerNorm" },
      },
    },
    sequence_classification = {
      architecture = "AlbertForSequenceClassification", head = "classifier", layers = pooled,
    },
    multiple_choice = {
      architecture = "AlbertForMultipleChoice", head = "classifier", layers = pooled,
    },
    token_classification = {
      architecture = "AlbertForTokenClassification", head = "classifier",
      layers = { { dropout = { "classifier_dropout_prob", "hidden_dropout_prob" } } },
    },
    question_answering = {
      architecture = "AlbertForQuestionAnswering", head = "qa_outputs", layers = {},
    },
  },
}
