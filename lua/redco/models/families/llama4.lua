--- Llama 4 with images (Meta, 2025), as Hugging Face's `Llama4ForConditionalGeneration`: features
--- of the tiles of an image, and of the whole image behind them, stand in the texts of a mixture of
--- experts.
local blocks = require "redco.models.layers.blocks"
local new_family = require "redco.models.kinds.features_in_text"
local vision = require "redco.models.images.llama4_vision"

local llama4 = {
  model_type = "llama4",
  models = "Llama 4 Scout, Maverick",
  remarks = "experts",
  architecture = "Llama4ForConditionalGeneration",
  parts = { text_config = "llama4_text" },
  tower_of_images = vision,
  names = { text = "language_model.model.", tower = "vision_model.",
    projector = "multi_modal_projector." },
  lm_head = "language_model.lm_head",
  ties_as_text = true,
  defaults = {
    boi_token_index = 200080,
    eoi_token_index = 200081,
    image_token_index = 200092,
  },
  aliases = { image_token_id = "image_token_index", boi_token_id = "boi_token_index",
    eoi_token_id = "eoi_token_index" },
}

function llama4.n_features(c) return vision.n_features(c.vision_config) end

function llama4.prompts(texts, options)
  options.padding_side = options.padding_side or "left"
  return texts
end

-- The word for an image stays in front of the features of the whole image.
function llama4.placeholder(c, token_of)
  local word, part = "<|image|>", token_of(c.image_token_index):rep(llama4.n_features(c))
  return word, function(info)
    local row = (part .. "<|tile_x_separator|>"):rep(info.columns - 1) .. part
      .. "<|tile_y_separator|>"
    return "<|image_start|>" .. row:rep(info.n_tiles > 1 and info.rows or 0) .. word .. part
      .. "<|image_end|>"
  end
end

function llama4.new_projector(c)
  return {
    add_parameters = function(add)
      blocks.add_linear(add, "linear_1", c.vision_config.vision_output_dim,
        c.text_config.hidden_size, blocks.normal(c.text_config.initializer_range), false)
    end,
    forward = function(params, _, last, o) return blocks.linear(params, "linear_1", last, o) end,
  }
end

return new_family(llama4)
