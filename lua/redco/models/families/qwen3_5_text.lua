--- The text model of Qwen3.5 (Qwen Team, 2026), as Hugging Face's `Qwen3_5ForCausalLM`: Qwen3-Next
--- without experts, with more projections.
local linear_layers = require "redco.models.states.linear_layers"
local new_family = require "redco.models.kinds.llama_like"
local tasks = require "redco.models.tasks"

return new_family(linear_layers.row({
  model_type = "qwen3_5_text",
  models = "Qwen3.5",
  remarks = "states; of folders with images only the text model is read",
  architecture = "Qwen3_5ForCausalLM",
  tasks = {
    features = tasks.features "Qwen3_5Text",
    sequence_classification = {
      architecture = "Qwen3_5TextForSequenceClassification", head = "score", bias = false,
    },
  },
  defaults = {
    vocab_size = 248320,
    hidden_size = 4096,
    intermediate_size = 12288,
    num_hidden_layers = 32,
    num_key_value_heads = 4,
  },
  optional = { "layer_types", "full_attention_interval" },
}, false))
