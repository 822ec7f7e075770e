--- InternVL 3 (Zhu et al., 2025), as Hugging Face's `InternVLForConditionalGeneration`: squares of
--- patches of the tiles of an image, joined, are projected to the embeddings of a decoder.
local blocks = require "redco.models.layers.blocks"
local new_family = require "redco.models.kinds.features_in_text"
local squares = require "redco.models.images.patch_squares"
local vision = require "redco.models.images.internvl_vision"

local internvl = {
  model_type = "internvl",
  models = "InternVL 2.5, 3 and 3.5, in the folders that end in -hf",
  remarks = "films are not read",
  architecture = "InternVLForConditionalGeneration",
  parts = { text_config = "qwen2" },
  tower_of_images = vision,
  is_tied = true,
  is_tied_by_text = true,
  defaults = {
    image_token_id = 151667,
    image_seq_length = 256,
    downsample_ratio = 0.5,
    projector_hidden_act = "gelu",
  },
  only = { vision_feature_layer = -1, vision_feature_select_strategy = "default" },
  optional = { "tie_word_embeddings", "image_token_index" },
}

-- Returns the number of patches along a side of a tile, and along a side of a square.
local function sides_of(c)
  local n_rows = vision.n_rows(c.vision_config)
  return n_rows, squares.side(c, "downsample_ratio", n_rows)
end

function internvl.check(c) sides_of(c) end

function internvl.n_features(c)
  local n_rows, side = sides_of(c)
  return (n_rows / side) ^ 2
end

function internvl.prompts(texts, options)
  options.padding_side = options.padding_side or "left"
  return texts
end

function internvl.image_options() return { crop_to_patches = true } end

function internvl.placeholder(c, token_of)
  local word = token_of(c.image_token_id)
  local part = word:rep(internvl.n_features(c))
  return word, function(info) return "<img>" .. part:rep(info.n_tiles) .. "</img>" end
end

function internvl.new_projector(c)
  local n_rows, side = sides_of(c)
  local size, inner = c.text_config.hidden_size, c.vision_config.hidden_size * side ^ 2
  local activation = blocks.activation("internvl", c.projector_hidden_act)
  local projector = {}

  function projector.add_parameters(add)
    local normal = blocks.normal(c.text_config.initializer_range)
    blocks.add_layer_norm(add, "layer_norm", inner)
    blocks.add_linear(add, "linear_1", inner, size, normal)
    blocks.add_linear(add, "linear_2", size, size, normal)
  end

  function projector.forward(params, _, last, o)
    local patches = last:narrow(1, 1, last:size(1) - 1)
    local x = squares.of(patches, n_rows, n_rows, side):flatten(2)
    x = blocks.linear(params, "linear_1", blocks.layer_norm(params, "layer_norm", x, 1e-5), o)
    return blocks.linear(params, "linear_2", activation(x), o)
  end

  return projector
end

return new_family(internvl)
