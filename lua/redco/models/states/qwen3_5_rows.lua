--- The decoders of Qwen3.5 (Qwen Team, 2026), alone and of its models of images: Qwen3-Next with
--- more projections. Each function returns a new row of llama_like.lua.
local experts = require "redco.models.layers.experts"
local linear_layers = require "redco.models.states.linear_layers"
local tasks = require "redco.models.tasks"

local rows = {}

function rows.dense()
  return linear_layers.row({
    model_type = "qwen3_5_text",
    models = "Qwen3.5",
    remarks = "states",
    architecture = "Qwen3_5ForCausalLM",
    tasks = {
      features = tasks.features "Qwen3_5Text",
      sequence_classification = {
        architecture = "Qwen3_5TextForSequenceClassification", head = "score", bias = false,
      },
    },
    defaults = {
      vocab_size = 248320,
      hidden_size = 4096,
      intermediate_size = 12288,
      num_hidden_layers = 32,
      num_key_value_heads = 4,
    },
    optional = { "layer_types", "full_attention_interval" },
  }, false)
end

--- Whether the experts of a layer are two stacked weights, as their names say: the configuration
--- does not.
function rows.are_stacked(weights)
  for _, name in ipairs(weights:keys()) do
    if name:find "%.experts%.gate_up_proj$" then return true end
  end
end

function rows.mixture()
  return linear_layers.row({
    model_type = "qwen3_5_moe_text",
    models = "Qwen3.5 35B-A3B and others",
    remarks = "states and experts",
    architecture = "Qwen3_5MoeForCausalLM",
    tasks = { features = tasks.features "Qwen3_5MoeText" },
    defaults = {
      vocab_size = 248320,
      hidden_size = 2048,
      num_hidden_layers = 40,
      num_key_value_heads = 2,
      moe_intermediate_size = 512,
      shared_expert_intermediate_size = 512,
      num_experts_per_tok = 8,
      num_experts = 256,
      output_router_logits = false,
      router_aux_loss_coef = 0.001,
    },
    complete_by_weights = function(_, given, weights)
      given.experts_are_stacked = rows.are_stacked(weights)
    end,
    optional = { "layer_types", "full_attention_interval", "intermediate_size",
      "experts_are_stacked" },
    aliases = { num_local_experts = "num_experts" },  -- the name in transformers 5
    n_experts = "num_experts",
  }, false, function(c, facts)
    local mixture = experts.with_shared(c, true)
    facts.experts = function() return mixture end
  end)
end

return rows
