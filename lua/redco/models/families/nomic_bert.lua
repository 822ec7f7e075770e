--- NomicBERT (Nussbaum et al., 2024), as Hugging Face's `NomicBertModel` and other classes: BERT
--- with rotary positions, gated feed-forward layers and no biases. Its first folders have the keys
--- of the authors' own class.
local fail = require "redco.fail"
local new_encoder = require "redco.models.kinds.bert_like"

local dropout = { dropout = { "classifier_dropout", "hidden_dropout_prob" } }

-- The authors' names of activations of gated layers.
local gates = { swiglu = "silu", geglu = "gelu" }

local function complete(c)
  if c.activation_function then
    c.hidden_act = gates[c.activation_function] or fail("nomic_bert: activation_function = %s is "
      .. "not supported, only swiglu and geglu", c.activation_function)
    c.activation_function = nil
  end
  -- Texts longer than those of the training stretch positions, whatever max_position_embeddings is.
  if c.rotary_scaling_factor then
    c.rope_scaling = { rope_type = "dynamic", factor = c.rotary_scaling_factor }
    c.max_position_embeddings = c.max_trained_positions or 2048
    c.rotary_scaling_factor, c.max_trained_positions = nil, nil
  end
end

return new_encoder {
  model_type = "nomic_bert",
  models = "nomic-embed-text-v1 and v1.5",
  remarks = "also configurations with the authors' own keys (`n_embd`, `n_layer`)",
  class = "NomicBert",
  prefix = "nomic_bert",
  rotary = true,
  embedding_norm = "emb_ln",
  without_bias = { qkv = true, out = true, up = true, gate = true, down = true },
  defaults = {
    vocab_size = 30528,
    hidden_size = 768,
    num_hidden_layers = 12,
    num_attention_heads = 12,
    intermediate_size = 3072,
    hidden_act = "silu",
    hidden_dropout_prob = 0,
    attention_probs_dropout_prob = 0,
    max_position_embeddings = 2048,
    type_vocab_size = 2,
    initializer_range = 0.02,
    layer_norm_eps = 1e-12,
    rope_theta = 1000,
    pad_token_id = 0,
    tie_word_embeddings = true,
  },
  optional = { "activation_function", "rotary_scaling_factor", "max_trained_positions" },
  aliases = { n_embd = "hidden_size", n_layer = "num_hidden_layers",
    n_head = "num_attention_heads", n_inner = "intermediate_size",
    n_positions = "max_position_embeddings", layer_norm_epsilon = "layer_norm_eps",
    rotary_emb_base = "rope_theta", resid_pdrop = "hidden_dropout_prob",
    attn_pdrop = "attention_probs_dropout_prob" },
  only = { prenorm = false, parallel_block = false, use_rms_norm = false, causal = false,
    qkv_proj_bias = false, mlp_fc1_bias = false, mlp_fc2_bias = false, embd_pdrop = 0,
    rotary_emb_fraction = 1, rotary_emb_interleaved = false },
  complete = complete,
  check = function(c)
    if c.head_dim and c.head_dim * c.num_attention_heads ~= c.hidden_size then
      fail("nomic_bert: head_dim = %d is not supported, only hidden_size / num_attention_heads = "
        .. "%d", c.head_dim, c.hidden_size / c.num_attention_heads)
    end
  end,
  names = {
    layer = "encoder.layers.%d.", attention = "attn", qkv = ".Wqkv", out = ".out_proj",
    attention_norm = "norm1", up = "mlp.fc11", gate = "mlp.fc12", down = "mlp.fc2",
    norm = "norm2",
  },
  tasks = {
    masked_lm = {
      architecture = "NomicBertForMaskedLM", bias = "cls.predictions.bias",
      weight = "nomic_bert.embeddings.word_embeddings.weight",
      untied = "cls.predictions.decoder.weight", untied_bias = "cls.predictions.decoder.bias",
      layers = {
        { linear = "cls.predictions.transform.dense", activation = "hidden_act" },
        { norm = "cls.predictions.transform.layer_norm" },
      },
    },
    sequence_classification = {
      architecture = "NomicBertForSequenceClassification", head = "classifier",
      layers = { "first", { linear = "nomic_bert.pooler.dense", activation = "tanh" }, dropout },
    },
    token_classification = {
      architecture = "NomicBertForTokenClassification", head = "classifier", layers = { dropout },
    },
  },
}
