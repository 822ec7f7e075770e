--- LFM2's mixture of experts (Liquid AI, 2025), as Hugging Face's `Lfm2MoeForCausalLM`.
local fail = require "redco.fail"
local gated_convolution = require "redco.models.states.gated_convolution"
local grouped_experts = require "redco.models.layers.grouped_experts"
local new_family = require "redco.models.kinds.llama_like"
local tasks = require "redco.models.tasks"
local torch = require "redco.torch"

local lfm2_moe = {
  model_type = "lfm2_moe",
  models = "LFM2-8B-A1B",
  remarks = "states and experts",
  architecture = "Lfm2MoeForCausalLM",
  tasks = { features = tasks.features "Lfm2Moe" },
  inputs = { "input_ids", "attention_mask", "position_ids" },
  defaults = {
    vocab_size = 65536,
    hidden_size = 2048,
    intermediate_size = 7168,
    moe_intermediate_size = 1792,
    num_key_value_heads = 8,
    max_position_embeddings = 128000,
    rope_theta = 1000000,
    norm_eps = 1e-5,
    conv_bias = false,
    conv_L_cache = 3,
    num_dense_layers = 2,
    num_experts_per_tok = 4,
    num_experts = 32,
    use_expert_bias = true,
    routed_scaling_factor = 1,
    norm_topk_prob = true,
    tie_word_embeddings = true,
    pad_token_id = 0,
    bos_token_id = 1,
    eos_token_id = 2,
  },
  optional = { "layer_types" },
  aliases = { tie_embedding = "tie_word_embeddings", num_local_experts = "num_experts" },
  only = { output_router_logits = false },
  n_experts = "num_experts",
  layer_kinds = { "full_attention", "conv" },
}

function lfm2_moe.check(c)
  if not c.layer_types then fail "lfm2_moe: the configuration has no layer_types" end
end

function lfm2_moe.facts(c)
  local facts = gated_convolution.facts(c)
  local own = setmetatable({ n_routed_experts = c.num_experts, n_shared_experts = 0,
    hidden_act = "silu" }, { __index = c })
  local mixture = grouped_experts.new(own, {
    score = torch.sigmoid, bias = c.use_expert_bias and "expert_bias" or nil, least_sum = 1e-6,
    name = "feed_forward", names = { "w1", "w3", "w2" },
  })
  facts.experts = function(i) return i >= c.num_dense_layers and mixture or nil end
  return facts
end

return new_family(lfm2_moe)
