--- Qwen3's mixtures of experts (Yang et al., 2025), as Hugging Face's `Qwen3MoeForCausalLM`.
local experts = require "redco.models.layers.experts"
local new_family = require "redco.models.kinds.llama_like"
local sparse_layers = require "redco.models.layers.sparse_layers"
local tasks = require "redco.models.tasks"

local qwen3_moe = {
  model_type = "qwen3_moe",
  models = "Qwen3-30B-A3B and others",
  remarks = "experts",
  architecture = "Qwen3MoeForCausalLM",
  tasks = tasks.of_decoder("Qwen3Moe",
    { token_classification = "score", question_answering = true }, "transformer"),
  defaults = {
    vocab_size = 151936,
    hidden_size = 2048,
    intermediate_size = 6144,
    num_hidden_layers = 24,
    num_key_value_heads = 4,
    hidden_act = "silu",
    max_position_embeddings = 32768,
    rms_norm_eps = 1e-6,
    attention_bias = false,
    use_sliding_window = false,
    sliding_window = 4096,
    decoder_sparse_step = 1,
    moe_intermediate_size = 768,
    num_experts_per_tok = 8,
    num_experts = 128,
    norm_topk_prob = false,
    output_router_logits = false,
    router_aux_loss_coef = 0.001,
  },
  nullable = { "num_key_value_heads", "sliding_window" },
  optional = { "mlp_only_layers", "max_window_layers" },
  aliases = { num_local_experts = "num_experts" },  -- the name in transformers 5
  n_experts = "num_experts",
}

function qwen3_moe.facts(c)
  local mixture = experts.new(c, {
    n = c.num_experts, n_chosen = c.num_experts_per_tok, inner = c.moe_intermediate_size,
    is_normalised = c.norm_topk_prob, names = { "gate_proj", "up_proj", "down_proj" },
  })
  local window = c.use_sliding_window and c.sliding_window or nil
  return {
    qkv_bias = c.attention_bias, o_bias = c.attention_bias, head_norms = "head",
    window = function() return window end,
    experts = sparse_layers(c, mixture),
  }
end

return new_family(qwen3_moe)
