--- DeepSeek-V2 (DeepSeek-AI, 2024), as Hugging Face's `DeepseekV2ForCausalLM`: DeepSeek-V3 with a
--- softmax in the router.
local fail = require "redco.fail"
local grouped_experts = require "redco.models.layers.grouped_experts"
local latent_attention = require "redco.models.layers.latent_attention"
local new_family = require "redco.models.kinds.llama_like"
local rotary = require "redco.models.layers.rotary"
local tasks = require "redco.models.tasks"

local deepseek = {
  model_type = "deepseek_v2",
  models = "DeepSeek-V2, V2-Lite, Coder-V2",
  remarks = "experts; scores have YaRN's factor, as in version 5, which version 4 lacks",
  architecture = "DeepseekV2ForCausalLM",
  tasks = tasks.of_decoder("DeepseekV2", {}),
  defaults = {
    vocab_size = 102400,
    intermediate_size = 11008,
    moe_intermediate_size = 1407,
    hidden_act = "silu",
    max_position_embeddings = 2048,
    rms_norm_eps = 1e-6,
    attention_bias = false,
    first_k_dense_replace = 0,
    kv_lora_rank = 512,
    q_lora_rank = 1536,
    qk_nope_head_dim = 128,
    qk_rope_head_dim = 64,
    v_head_dim = 128,
    n_routed_experts = 64,
    n_shared_experts = 2,
    num_experts_per_tok = 6,
    routed_scaling_factor = 1,
    topk_method = "greedy",
    bos_token_id = 1,
    eos_token_id = 2,
  },
  nullable = { "q_lora_rank" },
  optional = { "n_group", "topk_group", "aux_loss_alpha", "seq_aux", "pretraining_tp",
    "qk_head_dim", "moe_layer_freq", "scoring_func", "ep_size" },
  aliases = { num_experts = "n_routed_experts" },  -- the name in transformers 5
  only = { mlp_bias = false, norm_topk_prob = false,
    output_router_logits = false, moe_layer_freq = 1, scoring_func = "softmax" },
  n_experts = "n_routed_experts",
}

-- Sets head_dim, from which transformers reads the rotary size.
function deepseek.complete(c) c.head_dim = c.qk_rope_head_dim end

function deepseek.check(c)
  if c.num_key_value_heads ~= c.num_attention_heads then
    fail("deepseek_v2: num_key_value_heads = %d is not supported, only num_attention_heads = %d",
      c.num_key_value_heads, c.num_attention_heads)
  end
  if c.topk_method == "greedy" then return end
  if c.topk_method ~= "group_limited_greedy" then
    fail("deepseek_v2: topk_method = %s is not supported, only greedy and group_limited_greedy",
      c.topk_method)
  end
  for _, key in ipairs { "n_group", "topk_group" } do
    if not c[key] then fail("deepseek_v2: group_limited_greedy needs %s, which is missing", key) end
  end
  grouped_experts.check(c, 1)
end

function deepseek.facts(c)
  return {
    attention = latent_attention, turn = rotary.turn_neighbours,
    experts = grouped_experts.layers(c, {
      score = function(logits) return logits:softmax(-1) end,
      n_best = c.topk_method ~= "greedy" and 1 or nil,
    }),
  }
end

return new_family(deepseek)
