--- CamemBERT (Martin et al., 2020), as Hugging Face's `CamembertForMaskedLM` and other classes.
return require("redco.models.families.roberta").like_roberta("camembert", "Camembert", 30522)
