--- LLaVA-OneVision (Li et al., 2024), as Hugging Face's `LlavaOnevisionForConditionalGeneration`:
--- LLaVA-NeXT with more tiles, of which the features are scaled down, for images that are alone in
--- their texts.
local fail = require "redco.fail"
local grids = require "redco.models.images.tile_grids"
local llava = require "redco.models.families.llava"
local new_family = require "redco.models.kinds.features_in_text"

-- Returns the largest number of tiles whose features are not scaled.
local function most_of(c)
  local most = tonumber(c.vision_aspect_ratio:match "^anyres_max_(%d+)$")
  return most and most > 0 and most
    or fail("llava_onevision: vision_aspect_ratio is '%s', expected a text as 'anyres_max_9'",
      c.vision_aspect_ratio)
end

local onevision = {
  model_type = "llava_onevision",
  models = "LLaVA-OneVision",
  remarks = "films are not read",
  architecture = "LlavaOnevisionForConditionalGeneration",
  parts = { text_config = "qwen2", vision_config = "siglip_vision_model" },
  default_parts = {
    vision_config = { model_type = "siglip_vision_model", hidden_size = 1152,
      intermediate_size = 4304, patch_size = 14, image_size = 384, num_hidden_layers = 26,
      num_attention_heads = 16, vision_use_head = false },
  },
  is_tied = false,
  is_tied_by_text = true,
  unit_dims = 5,
  feature_inputs = { "image_sizes", "batch_num_images" },
  defaults = {
    image_token_index = 151646,
    projector_hidden_act = "gelu",
    vision_feature_select_strategy = "full",
    vision_aspect_ratio = "anyres_max_9",
    multimodal_projector_bias = true,
    image_grid_pinpoints = {},
  },
  optional = { "tie_word_embeddings", "vision_feature_layer", "video_token_index" },
  aliases = { image_token_id = "image_token_index", video_token_id = "video_token_index" },
  n_image_layers = llava.n_image_layers,
  new_projector = llava.new_projector,
  new_splice = function(c) return grids.new_splice(c, most_of(c)) end,
  add_own_parameters = grids.add_parameters,
}
for height = 384, 2304, 384 do
  for width = 384, 2304, 384 do
    table.insert(onevision.defaults.image_grid_pinpoints, { height, width })
  end
end

function onevision.complete(c) c.vision_feature_layer = c.vision_feature_layer or -1 end

function onevision.check(c)
  llava.check(c)
  grids.check(c)
  most_of(c)
end

function onevision.placeholder(c, token_of)
  local word = token_of(c.image_token_index)
  return word, grids.text(c, word, most_of(c))
end

return new_family(onevision)
