--- Qwen3.5 (Qwen Team, 2026), as Hugging Face's `Qwen3_5ForConditionalGeneration`: Qwen3-VL with
--- states in most layers of the decoder, and without features between its layers.
local new_family = require "redco.models.kinds.qwen_vl"
local rows = require "redco.models.states.qwen3_5_rows"
local texts = require "redco.models.images.qwen_vl_text"

return new_family(rows.with_images {
  model_type = "qwen3_5",
  models = "Qwen3.5",
  remarks = "states",
  architecture = "Qwen3_5ForConditionalGeneration",
  text = texts.qwen3_5_text,
})
