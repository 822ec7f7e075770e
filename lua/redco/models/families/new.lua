--- GTE in the folders of its authors, whose own class is `NewModel`.
return require("redco.models.families.gte").like_gte("new", "New", "new",
  { vocab_size = 30528, max_position_embeddings = 2048, rope_theta = 10000, pad_token_id = 0 })
