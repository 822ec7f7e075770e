--- GTE in the folders of its authors, whose own class is `NewModel`.
local gte = require "redco.models.families.gte"

return gte.like_gte("new", "GTE in the folders of its authors", "New", "new",
  { vocab_size = 30528, max_position_embeddings = 2048, rope_theta = 10000, pad_token_id = 0 })
