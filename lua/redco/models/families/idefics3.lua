--- Idefics 3 (Laurençon et al., 2024), and SmolVLM of the first generation, whose folders have this
--- model_type.
return require "redco.models.kinds.idefics3_like" {
  model_type = "idefics3",
  models = "Idefics 3, SmolVLM",
  architecture = "Idefics3ForConditionalGeneration",
  vision_type = "idefics3_vision",
}
