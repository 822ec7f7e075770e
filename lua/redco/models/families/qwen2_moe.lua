--- Qwen1.5-MoE and Qwen2's mixtures of experts (Yang et al., 2024), as Hugging Face's
--- `Qwen2MoeForCausalLM`: beside the experts is a layer for all tokens, with a factor.
local experts = require "redco.models.layers.experts"
local new_family = require "redco.models.kinds.llama_like"
local sparse_layers = require "redco.models.layers.sparse_layers"
local tasks = require "redco.models.tasks"
local windows = require "redco.models.layers.windows"

local qwen2_moe = {
  model_type = "qwen2_moe",
  models = "Qwen1.5-MoE, Qwen2-57B-A14B",
  remarks = "experts; without `use_sliding_window`, which versions 4 and 5 read differently",
  architecture = "Qwen2MoeForCausalLM",
  tasks = tasks.of_decoder("Qwen2Moe",
    { token_classification = "score", question_answering = true }),
  defaults = {
    vocab_size = 151936,
    hidden_size = 2048,
    intermediate_size = 5632,
    num_hidden_layers = 24,
    num_attention_heads = 16,
    num_key_value_heads = 16,
    hidden_act = "silu",
    max_position_embeddings = 32768,
    rms_norm_eps = 1e-6,
    use_sliding_window = false,
    decoder_sparse_step = 1,
    moe_intermediate_size = 1408,
    shared_expert_intermediate_size = 5632,
    num_experts_per_tok = 4,
    num_experts = 60,
    norm_topk_prob = false,
    output_router_logits = false,
    router_aux_loss_coef = 0.001,
    qkv_bias = true,
  },
  nullable = { "num_key_value_heads" },
  optional = { "mlp_only_layers", "sliding_window", "max_window_layers", "layer_types" },
  -- Versions 4 and 5 of transformers give windows to different layers.
  only = { use_sliding_window = false },
  aliases = { num_local_experts = "num_experts" },  -- the name in transformers 5
  n_experts = "num_experts",
  complete = function(c) windows.complete(c, function() return false end) end,
}

function qwen2_moe.facts(c)
  local mixture = experts.with_shared(c, c.norm_topk_prob)
  return {
    qkv_bias = c.qkv_bias, window = windows.of_types(c), experts = sparse_layers(c, mixture),
  }
end

return new_family(qwen2_moe)
