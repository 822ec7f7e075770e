--- XLM-RoBERTa (Conneau et al., 2019), as Hugging Face's `XLMRobertaForMaskedLM` and other classes.
local roberta = require "redco.models.families.roberta"

return roberta.like_roberta {
  model_type = "xlm-roberta", models = "XLM-RoBERTa", class = "XLMRoberta", vocab_size = 30522,
}
