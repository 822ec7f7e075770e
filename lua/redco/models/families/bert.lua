--- BERT (Devlin et al., 2018), as Hugging Face's `BertForMaskedLM` and other classes.
local new_encoder = require "redco.models.kinds.bert_like"

local dropout = { dropout = { "classifier_dropout", "hidden_dropout_prob" } }

--- Returns a family with BERT's heads. The row has model_type, models, class, and other facts of
--- bert_like.lua.
local function like_bert(row)
  local class, prefix = row.class, row.prefix or "bert"
  local pooled = { "first", { linear = prefix .. ".pooler.dense", activation = "tanh" }, dropout }
  local facts = {
    prefix = prefix,
    pooler = { "first", { linear = "pooler.dense", activation = "tanh" } },
    tasks = {
      masked_lm = {
        architecture = class .. "ForMaskedLM", bias = "cls.predictions.bias",
        weight = prefix .. ".embeddings.word_embeddings.weight",
        untied = "cls.predictions.decoder.weight", untied_bias = "cls.predictions.decoder.bias",
        layers = {
          { linear = "cls.predictions.transform.dense", activation = "hidden_act" },
          { norm = "cls.predictions.transform.LayerNorm" },
        },
      },
      sequence_classification = {
        architecture = class .. "ForSequenceClassification", head = "classifier", layers = pooled,
      },
      multiple_choice = {
        architecture = class .. "ForMultipleChoice", head = "classifier", layers = pooled,
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

local bert = like_bert {
  model_type = "bert", models = "BERT", class = "Bert",
  remarks = "also files with `gamma` and `beta` for the norms",
}
bert.like_bert = like_bert
return bert
