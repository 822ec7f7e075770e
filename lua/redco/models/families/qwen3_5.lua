--- Qwen3.5 (Qwen Team, 2026), as Hugging Face's `Qwen3_5ForConditionalGeneration`: Qwen3-VL with
--- states in most layers of the decoder, and without features between its layers.
local new_family = require "redco.models.kinds.qwen_vl"
local texts = require "redco.models.images.qwen_vl_text"
local vision = require "redco.models.images.qwen3_vl_vision"

return new_family(vision.row_of_qwen3_5 {
  model_type = "qwen3_5",
  models = "Qwen3.5",
  remarks = "states",
  architecture = "Qwen3_5ForConditionalGeneration",
  text = texts.qwen3_5_text,
})
