--- Solar Open (Upstage, 2026), as Hugging Face's `SolarOpenForCausalLM`: GLM-4.5 with experts in
--- every layer.
local grouped_experts = require "redco.models.layers.grouped_experts"
local new_family = require "redco.models.kinds.llama_like"
local tasks = require "redco.models.tasks"
local torch = require "redco.torch"

return new_family {
  model_type = "solar_open",
  models = "Solar Open",
  remarks = "experts",
  architecture = "SolarOpenForCausalLM",
  tasks = { features = tasks.features "SolarOpen" },
  defaults = {
    vocab_size = 196608,
    num_hidden_layers = 48,
    num_attention_heads = 64,
    num_key_value_heads = 8,
    head_dim = 128,
    hidden_act = "silu",
    max_position_embeddings = 131072,
    rms_norm_eps = 1e-5,
    rope_theta = 1000000,
    attention_bias = false,
    moe_intermediate_size = 1280,
    num_experts_per_tok = 8,
    n_shared_experts = 1,
    n_routed_experts = 128,
    routed_scaling_factor = 1,
    n_group = 1,
    topk_group = 1,
    norm_topk_prob = true,
  },
  -- Model folders contain these keys, which transformers does not read.
  optional = { "intermediate_size", "first_k_dense_replace", "use_qk_norm" },
  only = { output_router_logits = false },
  aliases = { num_local_experts = "n_routed_experts" },
  n_experts = "n_routed_experts",
  check = function(c) grouped_experts.check(c, 2) end,
  facts = function(c)
    local mixture = grouped_experts.new(c, { score = torch.sigmoid, n_best = 2, rest = -math.huge,
      bias = "gate.e_score_correction_bias" })
    return { qkv_bias = c.attention_bias, experts = function() return mixture end }
  end,
}
