--- SmolVLM 2 (Marafioti et al., 2025): Idefics 3 under another name, which also reads films.
return require "redco.models.kinds.idefics3_like" {
  model_type = "smolvlm",
  models = "SmolVLM 2",
  remarks = "films are not read",
  architecture = "SmolVLMForConditionalGeneration",
  vision_type = "smolvlm_vision",
}
