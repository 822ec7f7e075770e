--- XLM-RoBERTa (Conneau et al., 2019), as Hugging Face's `XLMRobertaForMaskedLM` and other classes.
local roberta = require "redco.models.families.roberta"

return roberta.like_roberta("xlm-roberta", "XLM-RoBERTa", "XLMRoberta", 30522)
