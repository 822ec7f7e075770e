--- CamemBERT (Martin et al., 2020), as Hugging Face's `CamembertForMaskedLM` and other classes.
local roberta = require "redco.models.families.roberta"

return roberta.like_roberta {
  model_type = "camembert", models = "CamemBERT", class = "Camembert", vocab_size = 30522,
}
