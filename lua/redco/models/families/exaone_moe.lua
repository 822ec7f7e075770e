--- K-EXAONE (LG AI Research, 2025), as Hugging Face's `ExaoneMoeForCausalLM`: EXAONE 4 with norms
--- before the layers, and the mixtures of DeepSeek-V3.
local exaone4 = require "redco.models.families.exaone4"
local grouped_experts = require "redco.models.layers.grouped_experts"
local mlp_types = require "redco.models.layers.mlp_types"
local new_family = require "redco.models.kinds.llama_like"
local tasks = require "redco.models.tasks"
local torch = require "redco.torch"

-- Returns the configuration under DeepSeek's names.
local function deepseek(c)
  return setmetatable({ n_routed_experts = c.num_experts, n_shared_experts = c.num_shared_experts },
    { __index = c })
end

return new_family {
  model_type = "exaone_moe",
  models = "K-EXAONE",
  remarks = "experts; layers that predict a second token are ignored",
  architecture = "ExaoneMoeForCausalLM",
  tasks = { features = tasks.features "ExaoneMoe" },
  defaults = {
    vocab_size = 102400,
    intermediate_size = 16384,
    moe_intermediate_size = 1024,
    num_key_value_heads = 32,
    hidden_act = "silu",
    max_position_embeddings = 2048,
    rms_norm_eps = 1e-5,
    sliding_window = 4096,
    first_k_dense_replace = 1,
    num_experts = 64,
    num_experts_per_tok = 8,
    num_shared_experts = 1,
    norm_topk_prob = true,
    routed_scaling_factor = 2.5,
    n_group = 1,
    topk_group = 1,
    pad_token_id = 0,
    bos_token_id = 1,
    eos_token_id = 53,
  },
  nullable = { "sliding_window" },
  optional = { "mlp_layer_types", "num_nextn_predict_layers", "scoring_func", "topk_method",
    unpack(exaone4.optional) },
  only = { output_router_logits = false },
  ignored = { "%.rotary_emb%.inv_freq$", "^mtp%." },
  n_experts = "num_experts",
  complete = function(c)
    exaone4.complete(c)
    mlp_types.complete(c, function(i) return i >= c.first_k_dense_replace end)
  end,
  check = function(c)
    mlp_types.check(c)
    grouped_experts.check(deepseek(c), 2)
  end,
  facts = function(c)
    local facts = exaone4.facts(c)
    facts.norms = nil
    facts.experts = mlp_types.layers(c, grouped_experts.new(deepseek(c), {
      score = torch.sigmoid, n_best = 2, rest = -math.huge, bias = "e_score_correction_bias",
    }))
    return facts
  end,
}
