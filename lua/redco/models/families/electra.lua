--- ELECTRA (Clark et al., 2020), as Hugging Face's `ElectraForPreTraining` (the discriminator),
--- `ElectraForMaskedLM` (the generator) and other classes: BERT with smaller embeddings.
local new_encoder = require "redco.models.kinds.bert_like"

local dropout = { dropout = { "classifier_dropout", "hidden_dropout_prob" } }

return new_encoder {
  model_type = "electra",
  models = "ELECTRA",
  class = "Electra",
  prefix = "electra",
  embedding_size = "embedding_size",
  more = { embedding_size = 128, hidden_size = 256, num_attention_heads = 4,
    intermediate_size = 1024, summary_type = "first", summary_use_proj = true,
    summary_activation = "gelu", summary_last_dropout = 0.1 },
  only = { summary_type = "first", summary_use_proj = true },
  tasks = {
    masked_lm = {
      architecture = "ElectraForMaskedLM", bias = "generator_lm_head.bias",
      weight = "electra.embeddings.word_embeddings.weight", untied = "generator_lm_head.weight",
      layers = {
        { linear = "generator_predictions.dense", activation = "gelu", size = "embedding_size" },
        { norm = "generator_predictions.LayerNorm" },
      },
    },
    replaced_token_detection = {
      architecture = "ElectraForPreTraining", head = "discriminator_predictions.dense_prediction",
      layers = { { linear = "discriminator_predictions.dense", activation = "hidden_act" } },
    },
    sequence_classification = {
      architecture = "ElectraForSequenceClassification", head = "classifier.out_proj",
      layers = { "first", dropout, { linear = "classifier.dense", activation = "gelu" }, dropout },
    },
    multiple_choice = {
      architecture = "ElectraForMultipleChoice", head = "classifier",
      layers = { "first", { linear = "sequence_summary.summary",
        activation = "summary_activation" }, { dropout = { "summary_last_dropout" } } },
    },
    token_classification = {
      architecture = "ElectraForTokenClassification", head = "classifier", layers = { dropout },
    },
    question_answering = {
      architecture = "ElectraForQuestionAnswering", head = "qa_outputs", layers = {},
    },
  },
}
