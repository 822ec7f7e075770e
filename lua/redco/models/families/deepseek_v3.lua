--- DeepSeek-V3, R1 and Kimi K2 (DeepSeek-AI, 2024), as Hugging Face's `DeepseekV3ForCausalLM`:
--- LLaMA with latent attention, and in all but the first layers a mixture of experts, chosen from
--- the best groups of experts, beside an expert for all tokens.
local fail = require "redco.fail"
local grouped_experts = require "redco.models.layers.grouped_experts"
local latent_attention = require "redco.models.layers.latent_attention"
local new_family = require "redco.models.kinds.llama_like"
local rotary = require "redco.models.layers.rotary"
local tasks = require "redco.models.tasks"

local deepseek = {
  model_type = "deepseek_v3",
  models = "DeepSeek-V3, R1, Moonlight",
  remarks = "experts; the cache holds latents; layers that predict a second token are ignored. The "
    .. "makers' own folders in float8 open with packed weights",
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

-- Sets head_dim, from which transformers reads the rotary size.
function deepseek.complete(c) c.head_dim = c.qk_rope_head_dim end

function deepseek.check_mixture(c)
  if c.num_key_value_heads ~= c.num_attention_heads then
    fail("%s: num_key_value_heads = %d is not supported, only num_attention_heads = %d",
      c.model_type, c.num_key_value_heads, c.num_attention_heads)
  end
  grouped_experts.check(c, 2)
end

deepseek.check = deepseek.check_mixture

function deepseek.facts(c)
  return {
    attention = latent_attention,
    turn = c.rope_interleave and rotary.turn_neighbours or nil,
    experts = grouped_experts.sigmoid_layers(c),
  }
end

return new_family(deepseek)
