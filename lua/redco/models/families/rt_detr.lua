--- RT-DETR (Zhao et al., 2023), as Hugging Face's `RTDetrForObjectDetection`.
local new_family = require "redco.models.kinds.rt_detr_like"

return new_family { model_type = "rt_detr", models = "RT-DETR", class = "RTDetr" }
