--- XLM-RoBERTa (Conneau et al., 2019), as Hugging Face's `XLMRobertaForMaskedLM` and other classes.
return require("redco.models.families.roberta").like_roberta("xlm-roberta", "XLMRoberta", 30522)
