--- OLMoE (Muennighoff et al., 2024), as Hugging Face's `OlmoeForCausalLM`: LLaMA with a mixture of
--- experts in each layer, and norms of the whole projections q and k.
local experts = require "redco.models.layers.experts"
local new_family = require "redco.models.kinds.llama_like"
local tasks = require "redco.models.tasks"

return new_family {
  model_type = "olmoe",
  models = "OLMoE",
  remarks = "experts",
  architecture = "OlmoeForCausalLM",
  tasks = { features = tasks.features "Olmoe" },
  defaults = {
    vocab_size = 50304,
    hidden_size = 2048,
    intermediate_size = 2048,
    num_hidden_layers = 16,
    num_attention_heads = 16,
    hidden_act = "silu",
    max_position_embeddings = 4096,
    rms_norm_eps = 1e-5,
    attention_bias = false,
    num_experts_per_tok = 8,
    num_experts = 64,
    norm_topk_prob = false,
    output_router_logits = false,
    router_aux_loss_coef = 0.01,
    pad_token_id = 1,
    eos_token_id = 50279,
  },
  optional = { "clip_qkv" },
  n_experts = "num_experts",
  facts = function(c)
    local mixture = experts.new(c, {
      n = c.num_experts, n_chosen = c.num_experts_per_tok, inner = c.intermediate_size,
      is_normalised = c.norm_topk_prob, names = { "gate_proj", "up_proj", "down_proj" },
    })
    return {
      qkv_bias = c.attention_bias, o_bias = c.attention_bias, head_norms = "projection",
      clamp = c.clip_qkv, experts = function() return mixture end,
    }
  end,
}
