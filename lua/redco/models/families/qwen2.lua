--- Qwen2 and Qwen2.5 (Yang et al., 2024), as Hugging Face's `Qwen2ForCausalLM`: LLaMA with biases
--- on q, k and v, and windows in the last layers.
local new_family = require "redco.models.kinds.llama_like"
local tasks = require "redco.models.tasks"
local windows = require "redco.models.layers.windows"

return new_family {
  model_type = "qwen2",
  models = "Qwen2, Qwen2.5",
  architecture = "Qwen2ForCausalLM",
  tasks = tasks.of_decoder("Qwen2",
    { token_classification = "score", question_answering = true }, "transformer"),
  defaults = {
    vocab_size = 151936,
    intermediate_size = 22016,
    num_key_value_heads = 32,
    hidden_act = "silu",
    max_position_embeddings = 32768,
    rms_norm_eps = 1e-6,
    use_sliding_window = false,
    sliding_window = 4096,
    max_window_layers = 28,
  },
  nullable = { "num_key_value_heads", "sliding_window" },
  optional = { "layer_types" },
  complete = windows.complete_last,
  facts = function(c) return { qkv_bias = true, window = windows.of_types(c) } end,
}
