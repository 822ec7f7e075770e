--- BERT (Devlin et al., 2018), as Hugging Face's `BertForMaskedLM` and other classes.
local new_encoder = require "redco.models.bert_like"

local dropout = { dropout = { "classifier_dropout", "hidden_dropout_prob" } }
local pooled = { "first", { linear = "bert.pooler.dense", activation = "tanh" }, dropout }

return new_encoder {
  model_type = "bert",
  models = "BERT",
  remarks = "also files with `gamma` and `beta` for the norms",
  class = "Bert",
  prefix = "bert",
  pooler = { "first", { linear = "pooler.dense", activation = "tanh" } },
  tasks = {
    masked_lm = {
      architecture = "BertForMaskedLM", bias = "cls.predictions.bias",
      weight = "bert.embeddings.word_embeddings.weight", untied = "cls.predictions.decoder.weight",
      untied_bias = "cls.predictions.decoder.bias",
      layers = {
        { linear = "cls.predictions.transform.dense", activation = "hidden_act" },
        { norm = "cls.predictions.transform.LayerNorm" },
      },
    },
    sequence_classification = {
      architecture = "BertForSequenceClassification", head = "classifier", layers = pooled,
    },
    multiple_choice = {
      architecture = "BertForMultipleChoice", head = "classifier", layers = pooled,
    },
    token_classification = {
      architecture = "BertForTokenClassification", head = "classifier", layers = { dropout },
    },
    question_answering = {
      architecture = "BertForQuestionAnswering", head = "qa_outputs", layers = {},
    },
  },
}
