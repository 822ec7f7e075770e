--- Code World Model (Meta FAIR, 2025), as Hugging Face's `CwmForCausalLM`: LLaMA with windows in
--- three of four layers.
local new_family = require "redco.models.kinds.llama_like"
local tasks = require "redco.models.tasks"
local windows = require "redco.models.layers.windows"

return new_family {
  model_type = "cwm",
  models = "Code World Model",
  architecture = "CwmForCausalLM",
  tasks = { features = tasks.features "Cwm" },
  defaults = {
    vocab_size = 128256,
    hidden_size = 6144,
    intermediate_size = 21504,
    num_hidden_layers = 64,
    num_attention_heads = 48,
    num_key_value_heads = 8,
    head_dim = 128,
    hidden_act = "silu",
    max_position_embeddings = 131072,
    rms_norm_eps = 1e-5,
    mlp_bias = false,
    rope_theta = 1000000,
    sliding_window = 8192,
    bos_token_id = 128000,
  },
  nullable = { "sliding_window" },
  optional = { "layer_types", "pretraining_tp" },
  complete = function(c)
    if not c.rope_parameters and not c.rope_scaling then
      c.rope_scaling = { rope_type = "llama3", factor = 16, low_freq_factor = 1,
        high_freq_factor = 4, original_max_position_embeddings = 8192 }
    end
    c.eos_token_id = c.eos_token_id or { 128001, 128008, 128009 }
    windows.complete(c, function(i) return i % 4 ~= 0 end)
  end,
  facts = function(c) return { mlp_bias = c.mlp_bias, window = windows.of_types(c) } end,
}
