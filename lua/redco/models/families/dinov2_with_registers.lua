--- DINOv2 with registers (Darcet et al., 2023), as Hugging Face's `Dinov2WithRegistersModel` and
--- `Dinov2WithRegistersForImageClassification`: tokens without meaning beside the patches.
local dinov2 = require "redco.models.families.dinov2"

return dinov2.like_dinov2 {
  model_type = "dinov2_with_registers", models = "DINOv2 with registers",
  class = "Dinov2WithRegisters", registers = "num_register_tokens", interpolates = "antialias",
  more = { patch_size = 16, num_register_tokens = 4 },
}
