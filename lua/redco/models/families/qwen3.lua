--- Qwen3 (Yang et al., 2025), as Hugging Face's `Qwen3ForCausalLM`: LLaMA with norms of each head
--- of q and k, and windows in the last layers.
local new_family = require "redco.models.kinds.llama_like"
local tasks = require "redco.models.tasks"
local windows = require "redco.models.layers.windows"

return new_family {
  model_type = "qwen3",
  models = "Qwen3",
  architecture = "Qwen3ForCausalLM",
  tasks = tasks.of_decoder("Qwen3",
    { token_classification = "score", question_answering = true }, "transformer"),
  defaults = {
    vocab_size = 151936,
    intermediate_size = 22016,
    num_key_value_heads = 32,
    head_dim = 128,
    hidden_act = "silu",
    max_position_embeddings = 32768,
    rms_norm_eps = 1e-6,
    attention_bias = false,
    use_sliding_window = false,
    sliding_window = 4096,
    max_window_layers = 28,
  },
  nullable = { "num_key_value_heads", "sliding_window" },
  optional = { "layer_types" },
  complete = windows.complete_last,
  facts = function(c)
    return { qkv_bias = c.attention_bias, o_bias = c.attention_bias, head_norms = "head",
      window = windows.of_types(c) }
  end,
}
