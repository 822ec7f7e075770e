--- dots.llm1 (Huo et al., 2025), as Hugging Face's `Dots1ForCausalLM`: the attention of Qwen3 with
--- the mixtures of DeepSeek-V3.
local grouped_experts = require "redco.models.layers.grouped_experts"
local new_family = require "redco.models.kinds.llama_like"
local tasks = require "redco.models.tasks"
local windows = require "redco.models.layers.windows"

return new_family {
  model_type = "dots1",
  models = "dots.llm1",
  remarks = "experts",
  architecture = "Dots1ForCausalLM",
  tasks = { features = tasks.features "Dots1" },
  defaults = {
    vocab_size = 152064,
    hidden_size = 4608,
    intermediate_size = 10944,
    moe_intermediate_size = 1408,
    num_hidden_layers = 62,
    num_key_value_heads = 32,
    n_shared_experts = 2,
    n_routed_experts = 128,
    n_group = 1,
    topk_group = 1,
    num_experts_per_tok = 6,
    first_k_dense_replace = 0,
    norm_topk_prob = false,
    hidden_act = "silu",
    max_position_embeddings = 2048,
    rms_norm_eps = 1e-6,
    attention_bias = false,
    routed_scaling_factor = 1,
    sliding_window = 4096,
    max_window_layers = 62,
  },
  nullable = { "num_key_value_heads", "sliding_window" },
  -- Model folders contain the last keys, which transformers does not read.
  optional = { "layer_types", "use_sliding_window", "scoring_func", "topk_method",
    "moe_layer_freq" },
  aliases = { num_local_experts = "n_routed_experts" },
  only = { output_router_logits = false },
  n_experts = "n_routed_experts",
  complete = function(c)
    windows.complete(c, function(i) return c.sliding_window and i >= c.max_window_layers end)
  end,
  check = function(c) grouped_experts.check(c, 2) end,
  facts = function(c)
    return {
      qkv_bias = c.attention_bias, o_bias = c.attention_bias, head_norms = "head",
      window = windows.of_types(c), experts = grouped_experts.sigmoid_layers(c),
    }
  end,
}
