--- Bamba (IBM, Princeton, CMU and UIUC, 2024), as Hugging Face's `BambaForCausalLM`: most layers
--- have Mamba-2 in place of attention, whose positions turn half of each head.
local hybrid = require "redco.models.states.hybrid_layers"
local new_family = require "redco.models.kinds.llama_like"
local tasks = require "redco.models.tasks"

local bamba = {
  model_type = "bamba",
  models = "Bamba 9B",
  remarks = "states; without `z_loss_coefficient`",
  architecture = "BambaForCausalLM",
  tasks = { features = tasks.features "Bamba" },
  inputs = { "input_ids", "attention_mask", "position_ids" },
  defaults = hybrid.with_defaults {
    vocab_size = 128000,
    intermediate_size = 14336,
    num_key_value_heads = 8,
    hidden_act = "silu",
    max_position_embeddings = 262144,
    rms_norm_eps = 1e-5,
    attention_bias = false,
    mlp_bias = false,
    pad_token_id = 0,
    bos_token_id = 1,
    eos_token_id = 2,
  },
  nullable = { "num_key_value_heads" },
  optional = { "attn_layer_indices", "attn_rotary_emb", unpack(hybrid.optional) },
  only = { partial_rotary_factor = 0.5, z_loss_coefficient = 0 },
  layer_kinds = hybrid.kinds,
  check = hybrid.check,
}

function bamba.complete(c)
  -- transformers always uses 0.5, whatever the file says, but for rope_parameters of version 5.
  c.partial_rotary_factor = 0.5
end

function bamba.facts(c)
  local has_attention, mamba = {}, hybrid.mamba(c)
  for _, i in ipairs(c.attn_layer_indices or {}) do has_attention[i] = true end
  return {
    norms = { "input_layernorm", nil, "pre_ff_layernorm" }, last_norm = "final_layernorm",
    mlp_name = "feed_forward", mlp_bias = c.mlp_bias, qkv_bias = c.attention_bias,
    o_bias = c.attention_bias, mixer = function(i) return not has_attention[i] and mamba or nil end,
  }
end

return new_family(bamba)
