--- LLaVA-NeXT (Liu et al., 2024), as Hugging Face's `LlavaNextForConditionalGeneration`: LLaVA with
--- tiles of images (tile_grids.lua).
local grids = require "redco.models.images.tile_grids"
local llava = require "redco.models.families.llava"
local new_family = require "redco.models.kinds.features_in_text"

local next_llava = {
  model_type = "llava_next",
  models = "LLaVA-NeXT (1.6)",
  architecture = "LlavaNextForConditionalGeneration",
  parts = llava.parts,
  default_parts = llava.default_parts,
  is_tied = false,
  unit_dims = 5,
  feature_inputs = { "image_sizes" },
  defaults = {
    image_token_index = 32000,
    projector_hidden_act = "gelu",
    vision_feature_select_strategy = "default",
    multimodal_projector_bias = true,
    image_grid_pinpoints = { { 336, 672 }, { 672, 336 }, { 672, 672 }, { 1008, 336 },
      { 336, 1008 } },
  },
  optional = llava.optional,
  aliases = llava.aliases,
  complete = function(c) c.vision_feature_layer = c.vision_feature_layer or -2 end,
  n_image_layers = llava.n_image_layers,
  new_projector = llava.new_projector,
  new_splice = function(c) return grids.new_splice(c) end,
  add_own_parameters = grids.add_parameters,
}

function next_llava.check(c)
  llava.check(c)
  grids.check(c)
end

function next_llava.placeholder(c, token_of)
  local word = token_of(c.image_token_index)
  return word, grids.text(c, word)
end

return new_family(next_llava)
