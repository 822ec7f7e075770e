--- ERNIE 4.5's mixtures of experts (Baidu, 2025), as Hugging Face's `Ernie4_5_MoeForCausalLM`:
--- ERNIE 4.5 with experts in some layers, beside a layer for all tokens.
local grouped_experts = require "redco.models.layers.grouped_experts"
local new_family = require "redco.models.kinds.llama_like"
local rotary = require "redco.models.layers.rotary"
local tasks = require "redco.models.tasks"

local ernie = {
  model_type = "ernie4_5_moe",
  models = "ERNIE 4.5 21B-A3B, 300B-A47B",
  remarks = "experts; without `output_router_logits`; layers that predict a second token are "
    .. "ignored",
  architecture = "Ernie4_5_MoeForCausalLM",
  tasks = { features = tasks.features "Ernie4_5_Moe" },
  defaults = {
    vocab_size = 103424,
    hidden_size = 2560,
    intermediate_size = 12288,
    num_hidden_layers = 28,
    num_attention_heads = 20,
    num_key_value_heads = 4,
    hidden_act = "silu",
    max_position_embeddings = 131072,
    rms_norm_eps = 1e-5,
    rope_theta = 500000,
    moe_intermediate_size = 1536,
    moe_k = 6,
    moe_num_experts = 64,
    moe_num_shared_experts = 2,
    moe_layer_start_index = 1,
    moe_layer_interval = 1,
    tie_word_embeddings = true,
    pad_token_id = 0,
    bos_token_id = 1,
    eos_token_id = 2,
  },
  optional = { "moe_layer_end_index", "use_bias", "moe_norm_min",
    "router_aux_loss_coef" },
  -- transformers has no dropout here, and its router loss counts other experts.
  only = { attention_dropout = 0, use_bias = false,
    moe_norm_min = 1e-12, output_router_logits = false },
  aliases = { num_experts = "moe_num_experts", num_experts_per_tok = "moe_k" },
  -- The layers that predict a second token, which transformers ignores too.
  ignored = { "%.rotary_emb%.inv_freq$", "^model%.mtp_" },
  n_experts = "moe_num_experts",
  n_chosen = "moe_k",
}

-- Returns the mixture, with the configuration under DeepSeek's names.
local function new_mixture(c)
  return grouped_experts.new(setmetatable({
    n_routed_experts = c.moe_num_experts, num_experts_per_tok = c.moe_k, norm_topk_prob = true,
    n_shared_experts = c.moe_num_shared_experts, routed_scaling_factor = 1,
  }, { __index = c }), {
    score = function(logits) return logits:softmax(-1) end,
    bias = "moe_statics.e_score_correction_bias", bias_sizes = { 1, c.moe_num_experts },
  })
end

function ernie.facts(c)
  local mixture, last = new_mixture(c), c.moe_layer_end_index or -1
  return {
    turn = rotary.turn_neighbours,
    experts = function(i)
      return (i + 1) % c.moe_layer_interval == 0 and i >= c.moe_layer_start_index
        and (last == -1 or i <= last) and mixture or nil
    end,
  }
end

return new_family(ernie)
