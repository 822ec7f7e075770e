--- RoBERTa (Liu et al., 2019), as Hugging Face's `RobertaForMaskedLM` and other classes: BERT with
--- positions that count from the padding token, and heads without a pooler.
local new_encoder = require "redco.models.kinds.bert_like"

local dropout = { dropout = { "classifier_dropout", "hidden_dropout_prob" } }

--- Returns a family with RoBERTa's heads and positions. The row has model_type, models, class,
--- vocab_size and other facts of bert_like.lua.
local function like_roberta(row)
  local class, prefix = row.class, row.prefix or "roberta"
  local facts = {
    prefix = prefix,
    pooler = { "first", { linear = "pooler.dense", activation = "tanh" } },
    positions_of_tokens = true,
    more = { vocab_size = row.vocab_size, pad_token_id = 1, bos_token_id = 0, eos_token_id = 2 },
    tasks = {
      masked_lm = {
        architecture = class .. "ForMaskedLM", bias = "lm_head.bias",
        weight = prefix .. ".embeddings.word_embeddings.weight", untied = "lm_head.decoder.weight",
        untied_bias = "lm_head.decoder.bias",
        layers = { { linear = "lm_head.dense", activation = "gelu" },
          { norm = "lm_head.layer_norm" } },
      },
      sequence_classification = {
        architecture = class .. "ForSequenceClassification", head = "classifier.out_proj",
        layers = { "first", dropout, { linear = "classifier.dense", activation = "tanh" },
          dropout },
      },
      multiple_choice = {
        architecture = class .. "ForMultipleChoice", head = "classifier",
        layers = { "first", { linear = prefix .. ".pooler.dense", activation = "tanh" },
          { dropout = { "hidden_dropout_prob" } } },
      },
      token_classification = {
        architecture = class .. "ForTokenClassification", head = "classifier",
        layers = { dropout },
      },
      question_answering = {
        architecture = class .. "ForQuestionAnswering", head = "qa_outputs", layers = {},
      },
    },
  }
  for key, value in pairs(row) do facts[key] = value end
  return new_encoder(facts)
end

local roberta = like_roberta {
  model_type = "roberta", models = "RoBERTa", class = "Roberta", vocab_size = 50265,
}
roberta.like_roberta = like_roberta
return roberta
