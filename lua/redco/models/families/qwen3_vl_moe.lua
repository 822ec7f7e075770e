--- Qwen3-VL with mixtures of experts, as Hugging Face's `Qwen3VLMoeForConditionalGeneration`.
local new_family = require "redco.models.kinds.qwen_vl"
local texts = require "redco.models.images.qwen_vl_text"
local vision = require "redco.models.images.qwen3_vl_vision"

-- The configuration does not say whether experts' matrices are [n, in, out] or [n, out, in]. At
-- most one of gate_up_proj and down_proj is square, so the other one decides.
local function complete_by_weights(_, given, weights)
  local text = given.text_config
  local size = text.hidden_size or texts.qwen3_vl_moe_text.defaults.hidden_size
  for _, name in ipairs(weights:keys()) do
    local part = name:match "%.experts%.([%w_]+)$"
    local place = part == "gate_up_proj" and 2 or part == "down_proj" and 3
    if place and weights:shape(name)[place] ~= size then text.experts_are_turned = true end
  end
end

return new_family {
  model_type = "qwen3_vl_moe",
  models = "Qwen3-VL 30B-A3B and 235B-A22B",
  remarks = "experts",
  architecture = "Qwen3VLMoeForConditionalGeneration",
  text = texts.qwen3_vl_moe_text,
  vision = vision.new(),
  tower = vision.tower,
  complete_by_weights = complete_by_weights,
}
