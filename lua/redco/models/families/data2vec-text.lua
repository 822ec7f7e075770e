--- data2vec (Baevski et al., 2022), as Hugging Face's `Data2VecTextForMaskedLM` and other classes.
local roberta = require "redco.models.families.roberta"

return roberta.like_roberta {
  model_type = "data2vec-text", models = "data2vec of texts", class = "Data2VecText",
  prefix = "data2vec_text", vocab_size = 30522,
}
