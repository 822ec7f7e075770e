--- EuroBERT (Boizard et al., 2025), as Hugging Face's `EuroBertForMaskedLM` and other classes:
--- LLaMA's layers, whose tokens see both sides.
local blocks = require "redco.models.layers.blocks"
local fail = require "redco.fail"
local new_family = require "redco.models.kinds.llama_like"
local rotary = require "redco.models.layers.rotary"
local tasks = require "redco.models.tasks"

local dense = { linear = "dense", activation = "gelu" }

-- The steps before the last layer. "late" is the mean of all logits, which is that of their inputs.
local steps = { bos = { "first", dense }, mean = { "mean", dense }, late = { dense, "mean" } }

local eurobert = new_family {
  model_type = "eurobert",
  models = "EuroBERT",
  architecture = "EuroBertModel",
  default_task = "masked_lm",
  takes_features = false,
  defaults = {
    vocab_size = 128256,
    hidden_size = 768,
    intermediate_size = 3072,
    num_hidden_layers = 12,
    num_attention_heads = 12,
    hidden_act = "silu",
    max_position_embeddings = 8192,
    rms_norm_eps = 1e-5,
    attention_bias = false,
    mlp_bias = false,
    classifier_pooling = "late",
    bos_token_id = 128000,
    eos_token_id = 128001,
    pad_token_id = 128001,
  },
  optional = { "pretraining_tp", "mask_token_id", "mask_token" },
  ignored = { "^dense%.", "^classifier%.", "^lm_head%." },
  complete = function(c) c.head_dim = rotary.head_dim(c) end,
  check = function(c)
    if not steps[c.classifier_pooling] then
      fail("eurobert: classifier_pooling = '%s' is not supported, only bos, mean and late",
        c.classifier_pooling)
    end
  end,
  facts = function(c)
    return { qkv_bias = c.attention_bias, o_bias = c.attention_bias, mlp_bias = c.mlp_bias,
      reach = function(window) return window end }
  end,
  tasks = {
    features = tasks.features "EuroBert",
    masked_lm = {
      architecture = "EuroBertForMaskedLM", weight = "model.embed_tokens.weight",
      untied = "lm_head.weight", bias = "lm_head.bias", bias_key = "mlp_bias", layers = {},
    },
    sequence_classification = function(c)
      return {
        architecture = "EuroBertForSequenceClassification", head = "classifier",
        layers = steps[c.classifier_pooling or "late"] or {},
      }
    end,
    token_classification = {
      architecture = "EuroBertForTokenClassification", head = "classifier", layers = {},
    },
  },
}

eurobert.head, eurobert.new_head_input, eurobert.router_loss = nil, nil, nil

-- Positions count padding.
local new_forward = eurobert.new_forward
function eurobert.new_forward(c)
  local forward = new_forward(c)
  return function(params, inputs, o)
    local places = inputs.position_ids or blocks.position_ids({}, o, inputs.input_ids)
    return forward(params, setmetatable({ position_ids = places }, { __index = inputs }), o)
  end
end

return eurobert
