--- RoBERTa (Liu et al., 2019), as Hugging Face's `RobertaForMaskedLM` and other classes: BERT with
--- positions that count from the padding token, and heads without a pooler.
local new_encoder = require "redco.models.post_norm_encoder"

local dropout = { dropout = { "classifier_dropout", "hidden_dropout_prob" } }

--- Returns a family with RoBERTa's parameters; `models` are the names that people know.
local function like_roberta(model_type, models, class, vocab_size)
  return new_encoder {
    model_type = model_type,
    models = models,
    class = class,
    prefix = "roberta",
    pooler = { "first", { linear = "pooler.dense", activation = "tanh" } },
    positions_of_tokens = true,
    more = { vocab_size = vocab_size, pad_token_id = 1, bos_token_id = 0, eos_token_id = 2 },
    tasks = {
      masked_lm = {
        architecture = class .. "ForMaskedLM", bias = "lm_head.bias",
        weight = "roberta.embeddings.word_embeddings.weight", untied = "lm_head.decoder.weight",
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
        layers = { "first", { linear = "roberta.pooler.dense", activation = "tanh" },
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
end

local roberta = like_roberta("roberta", "RoBERTa", "Roberta", 50265)
roberta.like_roberta = like_roberta
return roberta
