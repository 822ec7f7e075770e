--- GLM-4.7-Flash (GLM Team, 2026), as Hugging Face's `Glm4MoeLiteForCausalLM`: DeepSeek-V3 with a
--- list of the layers that have experts.
local deepseek_v3 = require "redco.models.families.deepseek_v3"
local grouped_experts = require "redco.models.layers.grouped_experts"
local latent_attention = require "redco.models.layers.latent_attention"
local mlp_types = require "redco.models.layers.mlp_types"
local new_family = require "redco.models.kinds.llama_like"
local rotary = require "redco.models.layers.rotary"
local tasks = require "redco.models.tasks"
local torch = require "redco.torch"

return new_family {
  model_type = "glm4_moe_lite",
  models = "GLM-4.7-Flash",
  remarks = "experts; the cache holds latents; layers that predict a second token are ignored",
  architecture = "Glm4MoeLiteForCausalLM",
  tasks = { features = tasks.features "Glm4MoeLite" },
  defaults = {
    vocab_size = 154880,
    hidden_size = 2048,
    intermediate_size = 10240,
    moe_intermediate_size = 1536,
    num_hidden_layers = 47,
    num_attention_heads = 20,
    num_key_value_heads = 20,
    n_shared_experts = 1,
    n_routed_experts = 64,
    routed_scaling_factor = 1.8,
    kv_lora_rank = 512,
    q_lora_rank = 768,
    qk_rope_head_dim = 64,
    v_head_dim = 256,
    qk_nope_head_dim = 192,
    n_group = 1,
    topk_group = 1,
    num_experts_per_tok = 4,
    norm_topk_prob = true,
    hidden_act = "silu",
    max_position_embeddings = 202752,
    rms_norm_eps = 1e-5,
    rope_interleave = true,
    attention_bias = false,
    bos_token_id = 0,
    eos_token_id = 1,
  },
  nullable = { "num_key_value_heads", "q_lora_rank" },
  optional = { "pretraining_tp", "qk_head_dim", "mlp_layer_types", "num_nextn_predict_layers",
    "topk_method", "first_k_dense_replace" },
  only = { output_router_logits = false },
  aliases = { num_local_experts = "n_routed_experts" },  -- the name in transformers 5
  -- The layers that predict a second token, which transformers ignores too.
  ignored = { "%.rotary_emb%.inv_freq$", "^model%.layers%.47%." },
  n_experts = "n_routed_experts",
  complete = function(c)
    c.head_dim = c.qk_rope_head_dim  -- as deepseek_v3 does
    mlp_types.complete(c, function(i) return i > 0 end)
  end,
  check = function(c)
    deepseek_v3.check_mixture(c)
    mlp_types.check(c)
  end,
  facts = function(c)
    local mixture = grouped_experts.new(c, { score = torch.sigmoid, n_best = 2, rest = -math.huge,
      bias = "gate.e_score_correction_bias" })
    return {
      attention = latent_attention,
      turn = c.rope_interleave and rotary.turn_neighbours or nil,
      experts = mlp_types.layers(c, mixture),
    }
  end,
}
