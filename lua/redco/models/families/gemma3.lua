--- Gemma 3 with images (Gemma Team, 2025), as Hugging Face's `Gemma3ForConditionalGeneration`:
--- means of SigLIP's hidden states over squares of patches are projected to the embeddings of
--- Gemma 3, where the tokens of an image see each other.
local blocks = require "redco.models.layers.blocks"
local fail = require "redco.fail"
local new_family = require "redco.models.kinds.features_in_text"
local norms = require "redco.models.layers.norms"
local splice = require "redco.models.images.splice"

local gemma3 = {
  model_type = "gemma3",
  models = "`gemma2`, `gemma3_text`",
  architecture = "Gemma3ForConditionalGeneration",
  parts = { text_config = "gemma3_text", vision_config = "siglip_vision_model" },
  is_tied = true,
  spans_of = function(inputs, is_image) return inputs.pixel_values and splice.spans(is_image) end,
  inputs = { "input_ids", "attention_mask", "position_ids", "segment_ids", "token_type_ids",
    "pixel_values" },
  defaults = {
    mm_tokens_per_image = 256,
    boi_token_index = 255999,
    eoi_token_index = 256000,
    image_token_index = 262144,
    initializer_range = 0.02,
  },
  aliases = { image_token_id = "image_token_index", boi_token_id = "boi_token_index",
    eoi_token_id = "eoi_token_index" },
}

-- Returns the number of squares along a side of an image, and of patches along a side of a square.
local function squares_of(c)
  local patches = math.floor(c.vision_config.image_size / c.vision_config.patch_size)
  local side = math.floor(math.sqrt(c.mm_tokens_per_image))
  local size = side > 0 and math.floor(patches / side) or 0
  if size == 0 or math.floor(patches / size) ^ 2 ~= c.mm_tokens_per_image then
    fail("gemma3: mm_tokens_per_image is %d, which squares of %d x %d patches do not give",
      c.mm_tokens_per_image, patches, patches)
  end
  return side, size, patches
end

gemma3.check = squares_of

function gemma3.n_features(c) return c.mm_tokens_per_image end

function gemma3.placeholder(c, token_of)
  local word = token_of(c.boi_token_index)
  return word, ("\n\n%s%s%s\n\n"):format(word,
    token_of(c.image_token_index):rep(c.mm_tokens_per_image), token_of(c.eoi_token_index))
end

function gemma3.new_projector(c)
  local width, weight = c.vision_config.hidden_size, "mm_input_projection_weight"
  local projector = {}

  function projector.add_parameters(add)
    add(weight, { width, c.text_config.hidden_size }, blocks.zeros)
    norms.rms_from_one.add(add, "mm_soft_emb_norm", { width })
  end

  function projector.forward(params, _, last)
    local side, size, patches = squares_of(c)
    local x = last:view { last:size(0), patches, patches, width }
      :narrow(1, 0, side * size):narrow(2, 0, side * size)
      :reshape { last:size(0), side, size, side, size, width }:mean { 2, 4 }
      :flatten(1, 2)
    x = norms.rms_from_one.apply(params, "mm_soft_emb_norm", x, c.vision_config.layer_norm_eps)
    return x:matmul(params[weight])
  end

  return projector
end

return new_family(gemma3)
