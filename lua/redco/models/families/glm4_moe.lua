--- GLM-4.5, 4.6 and 4.7 (GLM Team, 2025), as Hugging Face's `Glm4MoeForCausalLM`: DeepSeek's
--- mixtures of experts with ordinary attention, and positions in a part of each head.
local grouped_experts = require "redco.models.layers.grouped_experts"
local new_family = require "redco.models.kinds.llama_like"
local tasks = require "redco.models.tasks"

return new_family {
  model_type = "glm4_moe",
  models = "GLM-4.5, 4.6, 4.7",
  remarks = "experts; layers that predict a second token are ignored",
  architecture = "Glm4MoeForCausalLM",
  tasks = { features = tasks.features "Glm4Moe" },
  defaults = {
    vocab_size = 151552,
    intermediate_size = 10944,
    num_hidden_layers = 46,
    num_attention_heads = 96,
    num_key_value_heads = 8,
    partial_rotary_factor = 0.5,
    hidden_act = "silu",
    max_position_embeddings = 131072,
    rms_norm_eps = 1e-5,
    attention_bias = false,
    moe_intermediate_size = 1408,
    num_experts_per_tok = 8,
    n_shared_experts = 1,
    n_routed_experts = 128,
    routed_scaling_factor = 1,
    n_group = 1,
    topk_group = 1,
    first_k_dense_replace = 1,
    norm_topk_prob = true,
    use_qk_norm = false,
  },
  optional = { "num_nextn_predict_layers", "num_mtp_layers" },
  only = { output_router_logits = false },
  aliases = { num_local_experts = "n_routed_experts" },  -- the name in transformers 5
  -- The layers that predict a second token, which transformers ignores too.
  ignored = { "%.rotary_emb%.inv_freq$", "^model%.layers%.46%.", "^model%.layers%.92%." },
  n_experts = "n_routed_experts",
  check = function(c) grouped_experts.check(c, 2) end,
  facts = function(c)
    return {
      qkv_bias = c.attention_bias, head_norms = c.use_qk_norm and "head" or nil,
      experts = grouped_experts.sigmoid_layers(c),
    }
  end,
}
