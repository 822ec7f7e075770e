--- Qwen3.5 with mixtures of experts (Qwen Team, 2026), as Hugging Face's
--- `Qwen3_5MoeForConditionalGeneration`.
local new_family = require "redco.models.kinds.qwen_vl"
local rows = require "redco.models.states.qwen3_5_rows"
local texts = require "redco.models.images.qwen_vl_text"

return new_family(rows.with_images {
  model_type = "qwen3_5_moe",
  models = "Qwen3.5 35B-A3B and others",
  remarks = "states and experts",
  architecture = "Qwen3_5MoeForConditionalGeneration",
  text = texts.qwen3_5_moe_text,
  complete_by_weights = function(_, given, weights)
    given.text_config.experts_are_stacked = rows.are_stacked(weights)
  end,
})
