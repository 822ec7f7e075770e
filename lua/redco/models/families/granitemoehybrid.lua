--- Granite 4 (IBM, 2025), as Hugging Face's `GraniteMoeHybridForCausalLM`: most layers have Mamba-2
--- in place of attention, and beside the experts, if there are any, is a layer for all tokens.
local experts = require "redco.models.layers.experts"
local hybrid = require "redco.models.states.hybrid_layers"
local new_family = require "redco.models.kinds.llama_like"
local new_mlp = require "redco.models.layers.llama_mlp"
local tasks = require "redco.models.tasks"

local granite = {
  model_type = "granitemoehybrid",
  models = "Granite 4.0 Micro, H-Micro, H-Tiny, H-Small",
  remarks = "states and experts",
  architecture = "GraniteMoeHybridForCausalLM",
  tasks = { features = tasks.features "GraniteMoeHybrid" },
  inputs = { "input_ids", "attention_mask", "position_ids" },
  defaults = hybrid.with_defaults {
    vocab_size = 32000,
    intermediate_size = 11008,
    shared_intermediate_size = 1024,
    hidden_act = "silu",
    max_position_embeddings = 2048,
    rms_norm_eps = 1e-6,
    attention_bias = false,
    embedding_multiplier = 1,
    attention_multiplier = 1,
    residual_multiplier = 1,
    logits_scaling = 1,
    num_local_experts = 8,
    num_experts_per_tok = 2,
    output_router_logits = false,
    router_aux_loss_coef = 0.001,
    bos_token_id = 1,
    eos_token_id = 2,
  },
  nullable = { "num_key_value_heads" },
  optional = { "position_embedding_type", unpack(hybrid.optional) },
  n_experts = "num_local_experts",
  least = { num_local_experts = 0, num_experts_per_tok = 0 },
  layer_kinds = hybrid.kinds,
  check = hybrid.check,
}

function granite.complete(c)
  if c.layer_types then return end
  c.layer_types = {}
  for i = 1, c.num_hidden_layers do c.layer_types[i] = "mamba" end
end

--- Returns the layer for all tokens, and the experts beside it.
function granite.feed_forward(c)
  local shared = new_mlp(c, {
    activation = "hidden_act", joins_gate = true, joined_name = "input_linear",
    mlp_names = { nil, nil, "output_linear" }, mlp_bias = false, inner = c.shared_intermediate_size,
  })
  local mixture = c.num_local_experts > 0 and experts.new(c, {
    n = c.num_local_experts, n_chosen = c.num_experts_per_tok, inner = c.intermediate_size,
    is_normalised = true, router = "router.layer",
    stacked = { "input_linear.weight", "output_linear.weight" },
  })
  local layer = { name = "" }

  function layer.add_parameters(name, linear, add)
    shared.add_parameters(name .. "shared_mlp", linear)
    if mixture then mixture.add_parameters(name .. "block_sparse_moe", linear, add) end
  end

  function layer.forward(params, name, x, o)
    local y = shared.forward(params, name .. "shared_mlp", x, o)
    if not mixture then return y end
    local chosen, logits, numbers = mixture.forward(params, name .. "block_sparse_moe", x, o)
    return y + chosen, logits, numbers
  end

  return layer
end

function granite.facts(c)
  local layer = granite.feed_forward(c)
  local has_positions = c.position_embedding_type == "rope"
  return {
    qkv_bias = c.attention_bias, o_bias = c.attention_bias,
    experts = function() return layer end, mixer = hybrid.mixers(c, hybrid.mamba(c)),
    rope = function(_, whole) return has_positions and whole or nil end,
    embedding_scale = c.embedding_multiplier, attention_scale = c.attention_multiplier,
    residual_scale = c.residual_multiplier, logits_scale = 1 / c.logits_scaling,
  }
end

return new_family(granite)
