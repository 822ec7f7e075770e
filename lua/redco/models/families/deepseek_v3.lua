--- DeepSeek-V3, R1 and Kimi K2 (DeepSeek-AI, 2024), as Hugging Face's `DeepseekV3ForCausalLM`:
--- LLaMA with latent attention, and in all but the first layers a mixture of experts, chosen from
--- the best groups of experts, beside an expert for all tokens.
local adapter = require "redco.lora.adapter"
local blocks = require "redco.models.blocks"
local experts = require "redco.models.experts"
local fail = require "redco.fail"
local latent_attention = require "redco.models.latent_attention"
local native = require "redco.native"
local new_family = require "redco.models.llama_like"
local new_mlp = require "redco.models.llama_mlp"
local rotary = require "redco.models.rotary"
local tasks = require "redco.models.tasks"
local torch = require "redco.torch"

local deepseek = {
  model_type = "deepseek_v3",
  architecture = "DeepseekV3ForCausalLM",
  tasks = tasks.of_decoder("DeepseekV3", { token_classification = "score" }),
  defaults = {
    vocab_size = 129280,
    hidden_size = 7168,
    intermediate_size = 18432,
    moe_intermediate_size = 2048,
    num_hidden_layers = 61,
    num_attention_heads = 128,
    num_key_value_heads = 128,
    n_shared_experts = 1,
    n_routed_experts = 256,
    routed_scaling_factor = 2.5,
    kv_lora_rank = 512,
    q_lora_rank = 1536,
    qk_rope_head_dim = 64,
    v_head_dim = 128,
    qk_nope_head_dim = 128,
    n_group = 8,
    topk_group = 4,
    num_experts_per_tok = 8,
    first_k_dense_replace = 3,
    norm_topk_prob = true,
    hidden_act = "silu",
    max_position_embeddings = 4096,
    rms_norm_eps = 1e-6,
    rope_interleave = true,
    attention_bias = false,
    bos_token_id = 0,
    eos_token_id = 1,
  },
  nullable = { "num_key_value_heads", "q_lora_rank" },
  optional = { "pretraining_tp", "qk_head_dim" },
  -- The layers that predict a second token, which transformers ignores too.
  ignored = { "%.rotary_emb%.inv_freq$", "^model%.layers%.61%." },
  n_experts = "n_routed_experts",
}

-- transformers reads the size of what rotates from this key.
function deepseek.complete(c) c.head_dim = c.qk_rope_head_dim end

function deepseek.check(c)
  if c.num_key_value_heads ~= c.num_attention_heads then
    fail("deepseek_v3: num_key_value_heads = %d is not supported, only num_attention_heads = %d",
      c.num_key_value_heads, c.num_attention_heads)
  end
  blocks.check_multiple(c, "n_routed_experts", "n_group")
  local in_group = c.n_routed_experts / c.n_group
  if in_group < 2 or c.topk_group > c.n_group
    or c.num_experts_per_tok > c.topk_group * in_group then
    fail("deepseek_v3: %d experts in %d groups, of which topk_group = %d: expected at least 2 in a "
      .. "group and num_experts_per_tok (%d) in the chosen groups", c.n_routed_experts, c.n_group,
      c.topk_group, c.num_experts_per_tok)
  end
end

-- Keeps the scores [N, n] of the groups whose two best experts have the largest sums; others
-- become 0.
local function of_best_groups(c, scores)
  local groups = scores:view { scores:size(0), c.n_group, c.n_routed_experts / c.n_group }
  local sums = (groups:topk(2, -1)):sum { -1 }
  local best = torch.zeros_like(sums):scatter(1, select(2, sums:topk(c.topk_group, -1)), 1)
  return groups:masked_fill(best:eq(0):unsqueeze(-1), 0):view(scores.shape)
end

-- Returns a router as that of experts.lua. The bias, which is not trained, changes only which
-- experts are chosen.
local function new_router(c)
  return function(params, name, x)
    adapter.refuse(params, name .. ".gate")
    local dtype = blocks.wide_dtype(x)
    -- Each model shard chooses among all experts.
    local logits = native.whole_on_shards(
      native.linear(x:to(dtype), params[name .. ".gate.weight"]:to(dtype)))
    local scores = logits:sigmoid()
    local bias = params[name .. ".gate.e_score_correction_bias"]:detach()
    local numbers = torch.no_grad(function()
      return select(2, of_best_groups(c, scores:detach() + bias):topk(c.num_experts_per_tok, -1))
    end)
    local weights = scores:gather(1, numbers)
    if c.norm_topk_prob then weights = weights / (weights:sum({ -1 }, true) + 1e-20) end
    return logits, weights * c.routed_scaling_factor, numbers
  end
end

function deepseek.facts(c)
  local facts = { activation = "hidden_act", mlp_bias = false,
    mlp_names = { "gate_proj", "up_proj", "down_proj" } }
  local size = c.moe_intermediate_size * c.n_shared_experts
  local mixture = experts.new(c, {
    n = c.n_routed_experts, inner = c.moe_intermediate_size, names = facts.mlp_names,
    route = new_router(c),
    shared = new_mlp(setmetatable({ intermediate_size = size }, { __index = c }), facts),
    add_more = function(name, add)
      add(name .. ".gate.e_score_correction_bias", { c.n_routed_experts }, blocks.zeros)
    end,
  })
  return {
    attention = latent_attention,
    pairs = c.rope_interleave and rotary.neighbours or nil,
    experts = function(i) return i >= c.first_k_dense_replace and mixture or nil end,
  }
end

return new_family(deepseek)
