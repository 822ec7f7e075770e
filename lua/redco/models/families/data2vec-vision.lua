--- data2vec's model of images (Baevski et al., 2022), as Hugging Face's
--- `Data2VecVisionForImageClassification` and `Data2VecVisionModel`: built as BEiT.
local new_family = require "redco.models.kinds.beit_like"

return new_family {
  model_type = "data2vec-vision",
  models = "data2vec of images",
  class = "Data2VecVision",
  prefix = "data2vec_vision",
}
