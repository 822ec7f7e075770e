--- BEiT (Bao et al., 2021), as Hugging Face's `BeitForImageClassification` and `BeitModel`.
local new_family = require "redco.models.kinds.beit_like"

return new_family {
  model_type = "beit",
  models = "BEiT, BEiT v2",
  class = "Beit",
  prefix = "beit",
  has_pooler = true,
}
