--- The rows of the families of Qwen3.5 (Qwen Team, 2026), whose decoders are Qwen3-Next with more
--- projections.
local experts = require "redco.models.layers.experts"
local linear_layers = require "redco.models.states.linear_layers"
local tasks = require "redco.models.tasks"
local vision = require "redco.models.images.qwen3_vl_vision"

local rows = {}

--- Returns a new row of llama_like.lua.
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

--- The same with experts.
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

--- Completes a row of qwen_vl.lua.
function rows.with_images(row)
  row.vision, row.tower = vision.of_qwen3_5(), vision.tower
  row.ignored = { "%.rotary_pos_emb%.inv_freq$", "^mtp%." }
  -- States have no rows of several sequences.
  row.inputs = { "input_ids", "attention_mask", "position_ids", "pixel_values" }
  row.defaults = { image_token_id = 248056, video_token_id = 248057,
    vision_start_token_id = 248053, vision_end_token_id = 248054 }
  return row
end

return rows
