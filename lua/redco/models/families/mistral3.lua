--- Mistral Small 3.1 and 3.2 and Ministral 3 (Mistral AI, 2025), as Hugging Face's
--- `Mistral3ForConditionalGeneration`: squares of Pixtral's patches, merged, are projected to the
--- embeddings of Mistral. Images keep their sizes.
local blocks = require "redco.models.layers.blocks"
local fail = require "redco.fail"
local llava = require "redco.models.families.llava"
local new_family = require "redco.models.kinds.features_in_text"
local norms = require "redco.models.layers.norms"
local pixtral_images = require "redco.models.images.pixtral_images"
local squares = require "redco.models.images.patch_squares"
local vision = require "redco.models.images.pixtral_vision"

local mistral3 = {
  model_type = "mistral3",
  models = "Mistral Small 3.1 and 3.2, Ministral 3",
  architecture = "Mistral3ForConditionalGeneration",
  parts = { text_config = "mistral" },
  tower_of_images = vision,
  default_parts = {
    text_config = { model_type = "mistral", head_dim = 128, hidden_size = 5120,
      intermediate_size = 32768, max_position_embeddings = 131072, num_attention_heads = 32,
      num_hidden_layers = 40, num_key_value_heads = 8, rms_norm_eps = 1e-5, rope_theta = 1e9,
      vocab_size = 131072 },
    vision_config = { model_type = "pixtral", intermediate_size = 4096, hidden_size = 1024,
      patch_size = 14, image_size = 1540, num_hidden_layers = 24, num_attention_heads = 16 },
  },
  is_tied = true,
  is_tied_by_text = true,
  feature_inputs = { "image_sizes" },
  defaults = {
    image_token_index = 10,
    projector_hidden_act = "gelu",
    multimodal_projector_bias = false,
    spatial_merge_size = 2,
  },
  optional = { "tie_word_embeddings", "vision_feature_layer" },
  aliases = { image_token_id = "image_token_index" },
  n_image_layers = llava.n_image_layers,
  image_options = pixtral_images.options,
  placeholder = pixtral_images.text,
  new_splice = pixtral_images.new_splice,
}

function mistral3.complete(c) c.vision_feature_layer = c.vision_feature_layer or -1 end

function mistral3.check(c)
  if #llava.feature_places(c) ~= 1 then
    fail "mistral3: vision_feature_layer is a list, expected one number"
  end
end

function mistral3.new_projector(c)
  local place, size, side = llava.feature_places(c)[1], c.vision_config.hidden_size,
    c.spatial_merge_size
  local activation = blocks.activation("mistral3", c.projector_hidden_act)
  local projector = {}

  function projector.add_parameters(add)
    local normal = blocks.normal(c.text_config.initializer_range)
    local bias = c.multimodal_projector_bias and blocks.zeros
    norms.rms.add(add, "norm", { size })
    blocks.add_linear(add, "patch_merger.merging_layer", size * side ^ 2, size, normal, false)
    blocks.add_linear(add, "linear_1", size, c.text_config.hidden_size, normal, bias)
    blocks.add_linear(add, "linear_2", c.text_config.hidden_size, c.text_config.hidden_size, normal,
      bias)
  end

  function projector.forward(params, kept, _, o, images)
    local patch, x = c.vision_config.patch_size, kept[place + 1]
    local n_rows = math.floor(images.pixel_values:size(2) / patch)
    local n_columns = math.floor(images.pixel_values:size(3) / patch)
    x = blocks.rms_norm(params, "norm", x, c.text_config.rms_norm_eps)
      :view { x:size(0), n_rows, n_columns, size }
    n_rows, n_columns = n_rows - n_rows % side, n_columns - n_columns % side
    x = x:narrow(1, 0, n_rows):narrow(2, 0, n_columns):flatten(1, 2)
    -- Interleaves the patches of a square: the first elements of all patches come first.
    x = squares.of(x, n_rows, n_columns, side):permute { 0, 1, 4, 2, 3 }:flatten(2)
    x = blocks.linear(params, "patch_merger.merging_layer", x, o)
    return blocks.linear(params, "linear_2", activation(blocks.linear(params, "linear_1", x, o)), o)
  end

  return projector
end

return new_family(mistral3)
