--- MiniMax-M2 (MiniMax, 2025), as Hugging Face's `MiniMaxM2ForCausalLM`: Mixtral with DeepSeek's
--- router, norms of the whole projections q and k, and positions in a part of each head.
local grouped_experts = require "redco.models.layers.grouped_experts"
local new_family = require "redco.models.kinds.llama_like"
local tasks = require "redco.models.tasks"
local torch = require "redco.torch"

return new_family {
  model_type = "minimax_m2",
  models = "MiniMax-M2",
  remarks = "experts; without `output_router_logits`",
  architecture = "MiniMaxM2ForCausalLM",
  tasks = { features = tasks.features "MiniMaxM2" },
  defaults = {
    vocab_size = 200064,
    hidden_size = 3072,
    intermediate_size = 1536,
    num_hidden_layers = 62,
    num_attention_heads = 48,
    num_key_value_heads = 8,
    head_dim = 128,
    hidden_act = "silu",
    max_position_embeddings = 196608,
    rms_norm_eps = 1e-6,
    rope_theta = 5000000,
    partial_rotary_factor = 1,
    num_experts_per_tok = 8,
    num_local_experts = 256,
    bos_token_id = 200034,
    eos_token_id = 200020,
  },
  -- Keys of early folders, which all give these keys the same values.
  optional = { "rotary_dim", "attn_type_list", "mtp_transformer_layers", "num_mtp_modules",
    "qk_norm_type", "scoring_func", "shared_intermediate_size", "use_mtp", "use_qk_norm",
    "use_routing_bias", "router_aux_loss_coef" },
  -- transformers' router loss counts other experts than the chosen ones.
  only = { router_jitter_noise = 0, output_router_logits = false },
  aliases = { num_experts = "num_local_experts" },
  n_experts = "num_local_experts",
  complete = function(c)
    if c.rotary_dim and c.partial_rotary_factor == 1 then
      c.partial_rotary_factor = c.rotary_dim / c.head_dim
    end
  end,
  facts = function(c)
    local mixture = grouped_experts.new(setmetatable({ n_routed_experts = c.num_local_experts,
      moe_intermediate_size = c.intermediate_size, n_shared_experts = 0, norm_topk_prob = true,
      routed_scaling_factor = 1 }, { __index = c }), {
      score = torch.sigmoid, bias = "e_score_correction_bias", name = "block_sparse_moe",
      names = { "w1", "w3", "w2" },
    })
    return { head_norms = "projection", experts = function() return mixture end }
  end,
}
