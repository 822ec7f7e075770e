--- EXAONE 4 (LG AI Research, 2025), as Hugging Face's `Exaone4ForCausalLM`: LLaMA with norms after
--- the layers instead of before them, norms of each head of q and k, and windows in three of four
--- layers; the others have no positions.
local new_family = require "redco.models.kinds.llama_like"
local tasks = require "redco.models.tasks"
local windows = require "redco.models.layers.windows"

return new_family {
  model_type = "exaone4",
  models = "EXAONE 4",
  architecture = "Exaone4ForCausalLM",
  tasks = tasks.of_decoder("Exaone4",
    { token_classification = "score", question_answering = true }, "transformer"),
  defaults = {
    vocab_size = 102400,
    intermediate_size = 16384,
    num_key_value_heads = 32,
    hidden_act = "silu",
    max_position_embeddings = 2048,
    rms_norm_eps = 1e-5,
    sliding_window = 4096,
    bos_token_id = 0,
    eos_token_id = 2,
  },
  nullable = { "sliding_window" },
  -- A pattern may also be a text, such as "LLLG" in folders that have layer_types.
  optional = { "layer_types", "sliding_window_pattern", "cache_implementation" },
  complete = function(c)
    local n = tonumber(c.sliding_window_pattern) or 4
    windows.complete(c, function(i) return c.sliding_window and (i + 1) % n ~= 0 end)
  end,
  facts = function(c)
    local window = windows.of_types(c)
    return {
      norms = { nil, "post_attention_layernorm", nil, "post_feedforward_layernorm" },
      head_norms = "head", window = window,
      rope = function(i, whole) return (not c.sliding_window or window(i)) and whole or nil end,
    }
  end,
}
