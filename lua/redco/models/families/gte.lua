--- GTE (Zhang et al., 2024), as Hugging Face's `GteModel` and other classes: BERT with rotary
--- positions and gated feed-forward layers.
local fail = require "redco.fail"
local new_encoder = require "redco.models.kinds.bert_like"

local dropout = { dropout = { "classifier_dropout", "hidden_dropout_prob" } }

--- Returns a family with GTE's parameters; `models` are the names that people know.
local function like_gte(model_type, models, class, prefix, defaults)
  local facts = {
    model_type = model_type,
    models = models,
    class = class,
    prefix = prefix,
    rotary = true,
    may_lack_types = true,
    drops_inner = true,
    without_bias = { up_gate = true },
    defaults = {
      hidden_size = 768,
      num_hidden_layers = 12,
      num_attention_heads = 12,
      intermediate_size = 3072,
      hidden_act = "gelu",
      hidden_dropout_prob = 0.1,
      attention_probs_dropout_prob = 0,
      type_vocab_size = 1,
      initializer_range = 0.02,
      layer_norm_eps = 1e-12,
      tie_word_embeddings = true,
    },
    -- Settings of the authors' own class that change how it computes, not the result.
    optional = { "pack_qkv", "unpad_inputs", "use_memory_efficient_attention" },
    only = { position_embedding_type = "rope", layer_norm_type = "layer_norm",
      logn_attention_scale = false, logn_attention_clip1 = false },
    check = function(c)
      if c.rope_scaling and c.rope_scaling.mixed_b then
        fail("%s: rope_scaling.mixed_b is not supported", model_type)
      end
    end,
    names = {
      layer = "encoder.layer.%d.", attention = "attention", qkv = ".qkv_proj", out = ".o_proj",
      attention_norm = "attn_ln", up_gate = "mlp.up_gate_proj", down = "mlp.down_proj",
      norm = "mlp_ln",
    },
    tasks = {
      masked_lm = {
        architecture = class .. "ForMaskedLM", bias = "lm_head.decoder.bias",
        weight = prefix .. ".embeddings.word_embeddings.weight",
        untied = "lm_head.decoder.weight",
        layers = { { linear = "lm_head.dense", activation = "gelu" }, { norm = "lm_head.norm" } },
      },
      sequence_classification = {
        architecture = class .. "ForSequenceClassification", head = "classifier",
        layers = { "first", { linear = prefix .. ".pooler.dense", activation = "tanh" }, dropout },
      },
      token_classification = {
        architecture = class .. "ForTokenClassification", head = "classifier",
        layers = { dropout },
      },
    },
  }
  for key, value in pairs(defaults) do facts.defaults[key] = value end
  return new_encoder(facts)
end

local gte = like_gte("gte", "gte-multilingual-base, gte-large-en-v1.5", "Gte", "gte",
  { vocab_size = 250048, max_position_embeddings = 8192, rope_theta = 160000, pad_token_id = 1 })
gte.like_gte = like_gte
return gte
