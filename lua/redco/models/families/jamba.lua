--- Jamba (AI21 Labs, 2024), as Hugging Face's `JambaForCausalLM`: most layers have Mamba in place
--- of attention, which knows no positions, and every second has experts.
local experts = require "redco.models.layers.experts"
local fail = require "redco.fail"
local mamba_layer = require "redco.models.states.mamba_layer"
local new_family = require "redco.models.kinds.llama_like"
local norms = require "redco.models.layers.norms"
local steps = require "redco.models.states.steps"
local tasks = require "redco.models.tasks"

local jamba = {
  model_type = "jamba",
  models = "Jamba, Jamba 1.5 and 1.6, Jamba Reasoning 3B",
  remarks = "states and experts",
  architecture = "JambaForCausalLM",
  tasks = {
    features = tasks.features "Jamba",
    sequence_classification = {
      architecture = "JambaForSequenceClassification", head = "score", bias = false,
    },
  },
  inputs = { "input_ids", "attention_mask", "position_ids" },
  defaults = {
    vocab_size = 65536,
    intermediate_size = 14336,
    num_key_value_heads = 8,
    hidden_act = "silu",
    max_position_embeddings = 262144,
    rms_norm_eps = 1e-6,
    output_router_logits = false,
    router_aux_loss_coef = 0.001,
    num_experts_per_tok = 2,
    num_experts = 16,
    expert_layer_period = 2,
    expert_layer_offset = 1,
    attn_layer_period = 8,
    attn_layer_offset = 4,
    mamba_d_state = 16,
    mamba_d_conv = 4,
    mamba_expand = 2,
    mamba_conv_bias = true,
    mamba_proj_bias = false,
    pad_token_id = 0,
    bos_token_id = 1,
    eos_token_id = 2,
  },
  nullable = { "num_key_value_heads" },
  optional = { "mamba_dt_rank", "use_mamba_kernels", "use_mambapy", "use_associative_scan",
    "num_logits_to_keep" },
  aliases = { num_local_experts = "num_experts" },  -- the name in transformers 5
  only = { hidden_act = "silu" },
  n_experts = "num_experts",
}

function jamba.check(c)
  for _, kind in ipairs { "attn", "expert" } do
    local period, offset = c[kind .. "_layer_period"], c[kind .. "_layer_offset"]
    if period % 1 ~= 0 or offset % 1 ~= 0 or offset >= period then
      fail("jamba: %s_layer_offset (%g) must be a whole number below %s_layer_period (%g)", kind,
        offset, kind, period)
    end
  end
end

function jamba.facts(c)
  local mamba = mamba_layer(c, {
    name = "mamba", inner = c.mamba_expand * c.hidden_size, rank = steps.rank(c, "mamba_dt_rank"),
    n_states = c.mamba_d_state, kernel = c.mamba_d_conv, conv_bias = c.mamba_conv_bias,
    bias = c.mamba_proj_bias, activation = c.hidden_act, norms = norms.rms, eps = c.rms_norm_eps,
  })
  local mixture = c.num_experts > 1 and experts.new(c, {
    name = "feed_forward", n = c.num_experts, n_chosen = c.num_experts_per_tok,
    inner = c.intermediate_size, router = "router",
    names = { "gate_proj", "up_proj", "down_proj" },
  }) or nil
  return {
    norms = { "input_layernorm", nil, "pre_ff_layernorm" }, last_norm = "final_layernorm",
    mlp_name = "feed_forward", rope = function() end,
    experts = function(i)
      return i % c.expert_layer_period == c.expert_layer_offset and mixture or nil
    end,
    mixer = function(i)
      return i % c.attn_layer_period ~= c.attn_layer_offset and mamba or nil
    end,
  }
end

return new_family(jamba)
