--- FlexOlmo (Shi et al., 2025), as Hugging Face's `FlexOlmoForCausalLM`: OLMo 2 with the mixtures
--- of OLMoE.
local experts = require "redco.models.layers.experts"
local new_family = require "redco.models.kinds.llama_like"
local tasks = require "redco.models.tasks"

return new_family {
  model_type = "flex_olmo",
  models = "FlexOlmo",
  remarks = "experts",
  architecture = "FlexOlmoForCausalLM",
  tasks = { features = tasks.features "FlexOlmo" },
  defaults = {
    vocab_size = 100352,
    intermediate_size = 11008,
    hidden_act = "silu",
    max_position_embeddings = 4096,
    rms_norm_eps = 1e-6,
    rope_theta = 500000,
    attention_bias = false,
    num_experts_per_tok = 5,
    num_experts = 7,
    norm_topk_prob = false,
    output_router_logits = false,
    router_aux_loss_coef = 0.01,
    pad_token_id = 100277,
    eos_token_id = 100257,
  },
  aliases = { num_local_experts = "num_experts" },
  n_experts = "num_experts",
  facts = function(c)
    local mixture = experts.new(c, {
      n = c.num_experts, n_chosen = c.num_experts_per_tok, inner = c.intermediate_size,
      is_normalised = c.norm_topk_prob, names = { "gate_proj", "up_proj", "down_proj" },
    })
    return {
      norms = { nil, "post_attention_layernorm", nil, "post_feedforward_layernorm" },
      qkv_bias = c.attention_bias, o_bias = c.attention_bias, head_norms = "projection",
      experts = function() return mixture end,
    }
  end,
}
