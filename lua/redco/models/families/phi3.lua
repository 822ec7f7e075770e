--- Phi-3, Phi-3.5 and Phi-4-mini (Abdin et al., 2024), as Hugging Face's `Phi3ForCausalLM`: LLaMA
--- with q, k and v in one projection, gate and up in another, and positions in a part of each head.
local new_family = require "redco.models.kinds.llama_like"
local tasks = require "redco.models.tasks"
local windows = require "redco.models.layers.windows"

return new_family {
  model_type = "phi3",
  models = "Phi-3, Phi-3.5, Phi-4, Phi-4-mini",
  remarks = "of padded prompts that grow beyond `original_max_position_embeddings`, transformers "
    .. "attends to later tokens, redco-lua does not",
  architecture = "Phi3ForCausalLM",
  tasks = tasks.of_decoder("Phi3", { token_classification = "score" }),
  defaults = {
    vocab_size = 32064,
    hidden_size = 3072,
    intermediate_size = 8192,
    hidden_act = "silu",
    max_position_embeddings = 4096,
    original_max_position_embeddings = 4096,
    rms_norm_eps = 1e-5,
    partial_rotary_factor = 1,
    embd_pdrop = 0,  -- read by transformers, and not used
    resid_pdrop = 0,
    bos_token_id = 1,
    eos_token_id = 32000,
    pad_token_id = 32000,
  },
  -- transformers does not read attention_bias, which model folders contain.
  optional = { "sliding_window", "attention_bias" },
  rope_type_key = "type",
  complete = function(c)
    local scaling = c.rope_scaling
    if type(scaling) == "table" and (scaling.type == "su" or scaling.type == "yarn") then
      scaling.type = "longrope"
    end
  end,
  -- Texts beyond this length have other angles at all positions.
  restart_length = function(c) return c.rope_scaling and c.original_max_position_embeddings end,
  facts = function(c)
    return { joins_qkv = true, joins_gate = true, window = windows.of_all(c),
      residual_dropouts = { c.resid_pdrop, c.resid_pdrop } }
  end,
}
