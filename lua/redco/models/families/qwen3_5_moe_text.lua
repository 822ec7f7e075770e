--- The text model of Qwen3.5's mixtures of experts (Qwen Team, 2026), as Hugging Face's
--- `Qwen3_5MoeForCausalLM`.
local experts = require "redco.models.layers.experts"
local linear_layers = require "redco.models.states.linear_layers"
local new_family = require "redco.models.kinds.llama_like"
local tasks = require "redco.models.tasks"

-- Reads from the weights' names whether experts are stacked: the configuration does not say so.
local function complete_by_weights(_, given, weights)
  for _, name in ipairs(weights:keys()) do
    if name:find "%.experts%.gate_up_proj$" then given.experts_are_stacked = true end
  end
end

return new_family(linear_layers.row({
  model_type = "qwen3_5_moe_text",
  models = "Qwen3.5 35B-A3B and others",
  remarks = "states and experts; of folders with images only the text model is read",
  architecture = "Qwen3_5MoeForCausalLM",
  tasks = { features = tasks.features "Qwen3_5MoeText" },
  defaults = {
    vocab_size = 248320,
    hidden_size = 2048,
    num_hidden_layers = 40,
    num_key_value_heads = 2,
    moe_intermediate_size = 512,
    shared_expert_intermediate_size = 512,
    num_experts_per_tok = 8,
    num_experts = 256,
    output_router_logits = false,
    router_aux_loss_coef = 0.001,
  },
  complete_by_weights = complete_by_weights,
  optional = { "layer_types", "full_attention_interval", "intermediate_size",
    "experts_are_stacked" },
  aliases = { num_local_experts = "num_experts" },  -- the name in transformers 5
  n_experts = "num_experts",
}, false, function(c, facts)
  local mixture = experts.with_shared(c, true)
  facts.experts = function() return mixture end
end))
