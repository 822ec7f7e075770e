--- LLaVA (Liu et al., 2023), as Hugging Face's `LlavaForConditionalGeneration`: two layers project
--- hidden states of CLIP, SigLIP or Pixtral to the embeddings of a decoder. Pixtral's images keep
--- their sizes.
local blocks = require "redco.models.layers.blocks"
local fail = require "redco.fail"
local layers = require "redco.models.layers.clip_layers"
local new_family = require "redco.models.kinds.features_in_text"
local pixtral_images = require "redco.models.images.pixtral_images"
local pixtral_vision = require "redco.models.images.pixtral_vision"
local torch = require "redco.torch"

local llava = {
  model_type = "llava",
  models = "LLaVA 1.5, Pixtral-12B, and others in its form",
  architecture = "LlavaForConditionalGeneration",
  parts = { text_config = "llama", vision_config = "clip_vision_model" },
  towers = { pixtral = pixtral_vision },
  default_parts = {
    vision_config = { model_type = "clip_vision_model", intermediate_size = 4096,
      hidden_size = 1024, patch_size = 14, image_size = 336, num_hidden_layers = 24,
      num_attention_heads = 16, projection_dim = 768 },
  },
  is_tied = false,
  is_tied_by_text = true,
  feature_inputs = { "image_sizes" },
  defaults = {
    image_token_index = 32000,
    projector_hidden_act = "gelu",
    vision_feature_select_strategy = "default",
    multimodal_projector_bias = true,
  },
  optional = { "image_seq_length", "tie_word_embeddings", "vision_feature_layer" },
  aliases = { image_token_id = "image_token_index" },
}

function llava.complete(c)
  c.vision_feature_layer = c.vision_feature_layer or -2
end

-- Returns the indices of the hidden states to read; 0 is the input of the first layer.
function llava.feature_places(c)
  local given, n, places = c.vision_feature_layer, c.vision_config.num_hidden_layers, {}
  for i, place in ipairs(type(given) == "table" and given or { given }) do
    local is_known = type(place) == "number" and place % 1 == 0 and place >= -n - 1 and place <= n
    if not is_known then
      fail("%s: vision_feature_layer is %s, expected numbers from %d to %d", c.model_type, place,
        -n - 1, n)
    end
    places[i] = place < 0 and n + 1 + place or place
  end
  return places
end

-- Whether the class token is left out.
local function is_cut(c)
  local strategy = c.vision_feature_select_strategy
  if strategy ~= "default" and strategy ~= "full" then
    fail("%s: vision_feature_select_strategy is '%s', expected 'default' or 'full'", c.model_type,
      strategy)
  end
  return strategy == "default"
end

local function is_pixtral(c) return c.vision_config.model_type == "pixtral" end

function llava.check(c)
  if is_cut(c) and is_pixtral(c) then
    fail "llava: vision_feature_select_strategy is 'default', expected 'full' for Pixtral's images"
  end
  if #llava.feature_places(c) == 0 then
    fail("%s: vision_feature_layer is an empty list", c.model_type)
  end
end

function llava.n_image_layers(c) return math.max(unpack(llava.feature_places(c))) end

function llava.n_features(c)
  local has_class = c.vision_config.model_type == "clip_vision_model"
  return layers.n_patches(c.vision_config) + (has_class and 1 or 0) - (is_cut(c) and 1 or 0)
end

function llava.image_options(c) return is_pixtral(c) and pixtral_images.options(c) or nil end

function llava.placeholder(c, token_of)
  if is_pixtral(c) then return pixtral_images.text(c, token_of) end
  local word = token_of(c.image_token_index)
  return word, word:rep(llava.n_features(c))
end

function llava.new_splice(c) return is_pixtral(c) and pixtral_images.new_splice(c) or nil end

function llava.new_projector(c)
  local places, text = llava.feature_places(c), c.text_config
  local activation = blocks.activation(c.model_type, c.projector_hidden_act)
  local projector = {}

  function projector.add_parameters(add)
    local normal, bias = blocks.normal(text.initializer_range), c.multimodal_projector_bias
    bias = bias and blocks.zeros
    blocks.add_linear(add, "linear_1", c.vision_config.hidden_size * #places, text.hidden_size,
      normal, bias)
    blocks.add_linear(add, "linear_2", text.hidden_size, text.hidden_size, normal, bias)
  end

  function projector.forward(params, kept, _, o)
    local states = {}
    for i, place in ipairs(places) do
      local x = kept[place + 1]
      states[i] = is_cut(c) and x:narrow(1, 1, x:size(1) - 1) or x
    end
    local x = #states > 1 and torch.cat(states, -1) or states[1]
    return blocks.linear(params, "linear_2", activation(blocks.linear(params, "linear_1", x, o)), o)
  end

  return projector
end

return new_family(llava)
