--- Granite 3's mixtures of experts (IBM, 2024), as Hugging Face's `GraniteMoeForCausalLM`: Granite
--- with the matrices of all experts of a layer in one weight.
local experts = require "redco.models.layers.experts"
local new_family = require "redco.models.kinds.llama_like"
local tasks = require "redco.models.tasks"
local ties = require "redco.models.ties"

-- Version 5 of transformers does not read this key.
local function has_positions(c)
  return (c.position_embedding_type or "rope") == "rope" or (ties.version(c) or 0) >= 5
end

return new_family {
  model_type = "granitemoe",
  models = "Granite 3's 1B-A400M and 3B-A800M",
  remarks = "experts",
  architecture = "GraniteMoeForCausalLM",
  tasks = { features = tasks.features "GraniteMoe" },
  defaults = {
    vocab_size = 32000,
    intermediate_size = 11008,
    hidden_act = "silu",
    max_position_embeddings = 2048,
    rms_norm_eps = 1e-6,
    attention_bias = false,
    embedding_multiplier = 1,
    attention_multiplier = 1,
    residual_multiplier = 1,
    logits_scaling = 1,
    num_local_experts = 8,
    num_experts_per_tok = 2,
    output_router_logits = false,
    router_aux_loss_coef = 0.001,
    bos_token_id = 1,
    eos_token_id = 2,
  },
  optional = { "position_embedding_type" },
  n_experts = "num_local_experts",
  facts = function(c)
    local mixture = experts.new(c, {
      name = "block_sparse_moe", n = c.num_local_experts, n_chosen = c.num_experts_per_tok,
      inner = c.intermediate_size, is_normalised = true, router = "router.layer",
      stacked = { "input_linear.weight", "output_linear.weight" },
    })
    return {
      qkv_bias = c.attention_bias, o_bias = c.attention_bias,
      experts = function() return mixture end,
      rope = function(_, whole) return has_positions(c) and whole or nil end,
      embedding_scale = c.embedding_multiplier, attention_scale = c.attention_multiplier,
      residual_scale = c.residual_multiplier, logits_scale = 1 / c.logits_scaling,
    }
  end,
}
