--- DistilBERT (Sanh et al., 2019), as Hugging Face's `DistilBertForMaskedLM` and other classes:
--- BERT without token types and pooler, under other names.
local new_encoder = require "redco.models.kinds.bert_like"

local pooled = { "first", { linear = "pre_classifier", activation = "relu" },
  { dropout = { "seq_classif_dropout" } } }

return new_encoder {
  model_type = "distilbert",
  models = "DistilBERT",
  class = "DistilBert",
  prefix = "distilbert",
  eps = 1e-12,
  keeps_attention = true,
  defaults = {
    vocab_size = 30522,
    max_position_embeddings = 512,
    n_layers = 6,
    n_heads = 12,
    dim = 768,
    hidden_dim = 3072,
    dropout = 0.1,
    attention_dropout = 0.1,
    activation = "gelu",
    initializer_range = 0.02,
    qa_dropout = 0.1,
    seq_classif_dropout = 0.2,
    pad_token_id = 0,
    tie_word_embeddings = true,
  },
  -- Other names of the same settings (attribute_map of transformers).
  aliases = { hidden_size = "dim", num_attention_heads = "n_heads",
    num_hidden_layers = "n_layers" },
  only = { sinusoidal_pos_embds = false },
  keys = { size = "dim", layers = "n_layers", heads = "n_heads", inner = "hidden_dim",
    activation = "activation", dropout = "dropout", attention_dropout = "attention_dropout" },
  names = {
    layer = "transformer.layer.%d.", attention = "attention",
    q = ".q_lin", k = ".k_lin", v = ".v_lin", out = ".out_lin",
    attention_norm = "sa_layer_norm", up = "ffn.lin1", down = "ffn.lin2",
    norm = "output_layer_norm",
  },
  tasks = {
    masked_lm = {
      architecture = "DistilBertForMaskedLM", bias = "vocab_projector.bias",
      weight = "distilbert.embeddings.word_embeddings.weight", untied = "vocab_projector.weight",
      layers = { { linear = "vocab_transform", activation = "activation" },
        { norm = "vocab_layer_norm" } },
    },
    sequence_classification = {
      architecture = "DistilBertForSequenceClassification", head = "classifier", layers = pooled,
    },
    multiple_choice = {
      architecture = "DistilBertForMultipleChoice", head = "classifier", layers = pooled,
    },
    token_classification = {
      architecture = "DistilBertForTokenClassification", head = "classifier",
      layers = { { dropout = { "dropout" } } },
    },
    question_answering = {
      architecture = "DistilBertForQuestionAnswering", head = "qa_outputs",
      layers = { { dropout = { "qa_dropout" } } },
    },
  },
}
