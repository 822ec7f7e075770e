--- Qwen3-VL (Bai et al., 2025), as Hugging Face's `Qwen3VLForConditionalGeneration`: learned
--- positions of patches are interpolated, and features of several layers of the model of images go
--- into the first layers of the decoder.
local new_family = require "redco.models.kinds.qwen_vl"
local texts = require "redco.models.images.qwen_vl_text"
local vision = require "redco.models.images.qwen3_vl_vision"

return new_family {
  model_type = "qwen3_vl",
  models = "Qwen3-VL",
  architecture = "Qwen3VLForConditionalGeneration",
  text = texts.qwen3_vl_text,
  vision = vision.new(),
  tower = vision.tower,
}
