--- Falcon-H1 (Technology Innovation Institute, 2025), as Hugging Face's `FalconH1ForCausalLM`: each
--- layer has attention and Mamba-2 beside each other, with factors everywhere.
local fail = require "redco.fail"
local hybrid = require "redco.models.states.hybrid_layers"
local new_family = require "redco.models.kinds.llama_like"
local rotary = require "redco.models.layers.rotary"
local tasks = require "redco.models.tasks"

local falcon = {
  model_type = "falcon_h1",
  models = "Falcon-H1",
  remarks = "states",
  architecture = "FalconH1ForCausalLM",
  tasks = { features = tasks.features "FalconH1" },
  inputs = { "input_ids", "attention_mask", "position_ids" },
  defaults = hybrid.with_defaults {
    vocab_size = 128000,
    intermediate_size = 14336,
    num_key_value_heads = 8,
    hidden_act = "silu",
    max_position_embeddings = 8192,
    rms_norm_eps = 1e-5,
    rope_theta = 100000,
    attention_bias = false,
    mlp_bias = false,
    projectors_bias = false,
    mamba_d_ssm = 1024,
    mamba_norm_before_gate = true,
    mamba_rms_norm = false,
    lm_head_multiplier = 1,
    embedding_multiplier = 1,
    pad_token_id = 0,
    bos_token_id = 1,
    eos_token_id = 2,
  },
  nullable = { "num_key_value_heads", "mamba_d_ssm" },
  optional = { "key_multiplier", "attention_in_multiplier", "attention_out_multiplier",
    "ssm_in_multiplier", "ssm_out_multiplier", "mlp_multipliers", "ssm_multipliers",
    unpack(hybrid.optional) },
}

-- Raises an error unless the key is absent or a list of n numbers.
local function check_list(c, key, n)
  local list = c[key]
  local is_list = type(list) == "table" and #list == n
  for _, value in ipairs(is_list and list or {}) do
    is_list = is_list and type(value) == "number"
  end
  if list ~= nil and not is_list then
    fail("falcon_h1: %s is not a list of %d numbers", key, n)
  end
end

function falcon.check(c)
  hybrid.check(c)
  check_list(c, "mlp_multipliers", 2)
  check_list(c, "ssm_multipliers", 5)
end

-- Returns a mixer that adds attention and Mamba-2, both of the same input.
local function both(c, mamba, attention)
  local into, out, of_mamba = c.attention_in_multiplier or 1, c.attention_out_multiplier or 1,
    c.ssm_out_multiplier or 1
  local mixer = { name = "" }

  function mixer.add_parameters(name, ...)
    attention.add_parameters(name .. "self_attn", ...)
    mamba.add_parameters(name .. "mamba", ...)
  end

  function mixer.forward(params, name, x, ...)
    return mamba.forward(params, name .. "mamba", x, ...) * of_mamba
      + attention.forward(params, name .. "self_attn", x * into, ...) * out
  end

  return mixer
end

function falcon.facts(c)
  local scales = c.mlp_multipliers or { 1, 1 }
  local mamba = hybrid.mamba(c, {
    out_bias = c.projectors_bias, in_scale = c.ssm_in_multiplier, scales = c.ssm_multipliers,
    norm = not c.mamba_rms_norm and "none" or c.mamba_norm_before_gate and "then_gated" or "gated",
  })
  return {
    norms = { "input_layernorm", nil, "pre_ff_layernorm" }, last_norm = "final_layernorm",
    mlp_name = "feed_forward", mlp_bias = c.mlp_bias, gate_scale = scales[1], mlp_scale = scales[2],
    qkv_bias = c.attention_bias, o_bias = c.attention_bias,
    -- key_multiplier scales the keys, and so the scores.
    attention_scale = rotary.head_dim(c) ^ -0.5 * (c.key_multiplier or 1),
    embedding_scale = c.embedding_multiplier, logits_scale = c.lm_head_multiplier,
    mixer = function(_, attention) return both(c, mamba, attention) end,
  }
end

return new_family(falcon)
