--- Gemma 4 with images (Google, 2026), as Hugging Face's `Gemma4ForConditionalGeneration`: images
--- of any size fill as many tokens as they have squares of patches.
local blocks = require "redco.models.layers.blocks"
local fail = require "redco.fail"
local new_family = require "redco.models.kinds.features_in_text"
local norms = require "redco.models.layers.norms"
local spans = require "redco.models.images.splice".spans
local splice = require "redco.models.images.splice_varied"
local vision = require "redco.models.images.gemma4_vision"

local gemma4 = {
  model_type = "gemma4",
  models = "Gemma 4 E2B, E4B, 31B, 26B-A4B",
  remarks = "sound and films are not read",
  architecture = "Gemma4ForConditionalGeneration",
  parts = { text_config = "gemma4_text", vision_config = "gemma4_vision" },
  tower_of_images = vision,
  is_tied = true,
  may_lack_images = true,
  names = { text = "model.language_model.", tower = "model.vision_tower.",
    projector = "model.embed_vision." },
  logits_cap = function(c) return c.text_config.final_logit_softcapping end,
  feature_inputs = { "image_position_ids" },
  unit_dims = 3,
  defaults = {
    boi_token_id = 255999,
    eoi_token_id = 258882,
    image_token_id = 258880,
    video_token_id = 258884,
    audio_token_id = 258881,
    initializer_range = 0.02,
  },
  optional = { "tie_word_embeddings", "audio_config", "boa_token_id", "eoa_token_id",
    "eoa_token_index" },
  ignored = { "%.rotary_emb%.", "^model%.audio_tower%.", "^model%.embed_audio%." },
  -- The parameters that transformers has as buffers.
  buffers = setmetatable({}, { __index = function(_, name)
    return name:find "%.vision_tower%." and vision.is_buffer(name) or nil
  end }),
}

-- The parts for sound are not read, so a folder that is written has none.
function gemma4.complete(c) c.audio_config = nil end

local function listed(t) return table.concat(t.shape, ", ") end

-- Checks the shapes and the numbers of patches. The search for a layout has no values.
local function check_images(c, images)
  local pixels, places = images.pixel_values, images.image_position_ids
  if not places then fail("gemma4: inputs.image_position_ids is missing") end
  local k, size = c.vision_config.pooling_kernel_size, 3 * c.vision_config.patch_size ^ 2
  if pixels:dim() ~= 3 or pixels:size(2) ~= size or places:dim() ~= 3 or places:size(2) ~= 2
    or places:size(0) ~= pixels:size(0) or places:size(1) ~= pixels:size(1) then
    fail("gemma4: pixel_values of [%s] and image_position_ids of [%s]; expected [images, patches, "
      .. "%d] and [images, patches, 2], or both with a dimension of rows before them",
      listed(pixels), listed(places), size)
  end
  if pixels:size(1) % k ^ 2 ~= 0 then
    fail("gemma4: pixel_values have %d patches, expected a multiple of pooling_kernel_size ^ 2, %d",
      pixels:size(1), k ^ 2)
  end
  if places:to_local().device == "meta" then return end
  local sides = (places:amax { 1 } + 1):full():cpu()  -- a GPU is waited for once
  if sides:remainder(k):ne(0):any():item() then
    fail("gemma4: image_position_ids have numbers of rows or columns that are no multiples of "
      .. "pooling_kernel_size, %d", k)
  end
  local most = c.vision_config.position_embedding_size
  if sides:max():item() > most then
    fail("gemma4: image_position_ids have a place of %d, expected one below "
      .. "position_embedding_size, %d", sides:max():item() - 1, most)
  end
end

-- In the embeddings of layers images are padding.
function gemma4.read(c, given, inputs, is_image, images)
  if images then check_images(c, images) end
  local ids = inputs.input_ids
  local is_other = is_image:logical_or(ids:eq(c.video_token_id)):logical_or(
    ids:eq(c.audio_token_id))
  given.input_ids = ids:masked_fill(is_other, c.text_config.pad_token_id or 0)
  if images and c.text_config.use_bidirectional_attention == "vision" then
    given.image_spans = spans(is_image)
  end
end

function gemma4.new_projector(c)
  local own, width = c.vision_config, c.text_config.hidden_size
  local projector = {}

  function projector.add_parameters(add)
    add("embedding_projection.weight", { width, own.hidden_size },
      blocks.normal(c.text_config.initializer_range))
  end

  function projector.forward(params, _, means, o)
    local x = norms.rms_plain.apply(params, nil, means, own.rms_norm_eps)
    return blocks.linear(params, "embedding_projection", x, o)
  end

  return projector
end

function gemma4.new_splice(c)
  local square = c.vision_config.pooling_kernel_size ^ 2
  return function(_, x, is_image, features, images)
    local n_patches = images.image_position_ids:ne(-1):all(-1):sum { -1 }
    return splice("gemma4", x, is_image, features, { has_rows = images.n_real ~= nil,
      counts = n_patches:div(square, { rounding_mode = "floor" }) })
  end
end

function gemma4.placeholder(c, token_of)
  local word = token_of(c.image_token_id)
  return word, function(info)
    return token_of(c.boi_token_id) .. word:rep(info.num_soft_tokens_per_image)
      .. token_of(c.eoi_token_id)
  end
end

return new_family(gemma4)
