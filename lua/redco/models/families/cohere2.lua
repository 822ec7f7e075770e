--- Command R7B and Command A (Cohere, 2024), as Hugging Face's `Cohere2ForCausalLM`: Command R with
--- windows in three of four layers; the others have no positions.
local new_family = require "redco.models.kinds.llama_like"
local norms = require "redco.models.layers.norms"
local rotary = require "redco.models.layers.rotary"
local tasks = require "redco.models.tasks"
local windows = require "redco.models.layers.windows"

return new_family {
  model_type = "cohere2",
  models = "Command R7B, Command A",
  architecture = "Cohere2ForCausalLM",
  tasks = { features = tasks.features "Cohere2" },
  defaults = {
    vocab_size = 256000,
    hidden_size = 8192,
    intermediate_size = 22528,
    logit_scale = 0.0625,
    num_hidden_layers = 40,
    num_attention_heads = 64,
    hidden_act = "silu",
    max_position_embeddings = 8192,
    layer_norm_eps = 1e-5,
    attention_bias = false,
    sliding_window = 4096,
    tie_word_embeddings = true,
    pad_token_id = 0,
    bos_token_id = 5,
    eos_token_id = 255001,
  },
  -- Model folders contain the last keys, which transformers does not read.
  optional = { "layer_types", "sliding_window_pattern", "_sliding_window_pattern",
    "cache_implementation", "order_of_interleaved_layers", "position_embedding_type",
    "rotary_pct", "use_embedding_sharing", "use_gated_activation", "use_parallel_block",
    "use_parallel_embedding", "use_qk_norm" },
  complete = function(c)
    local n = c.sliding_window_pattern or 4
    windows.complete(c, function(i) return (i + 1) % n ~= 0 end)
  end,
  facts = function(c)
    local window = windows.of_types(c)
    return {
      norm = norms.layer_without_bias, eps = "layer_norm_eps", norms = { "input_layernorm" },
      is_parallel = true, turn = rotary.turn_neighbours, logits_scale = c.logit_scale,
      qkv_bias = c.attention_bias, o_bias = c.attention_bias, window = window,
      rope = function(i, whole) return window(i) and whole or nil end,
    }
  end,
}
