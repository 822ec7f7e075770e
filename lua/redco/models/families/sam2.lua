--- SAM 2 for images (Ravi et al., 2024), as Hugging Face's `Sam2Model`: masks of what points, boxes
--- or masks mean. Folders of its models of videos open, too, without their memory. Shapes: B
--- images, P objects of each.
local blocks = require "redco.models.layers.blocks"
local complete_config = require "redco.models.config"
local fail = require "redco.fail"
local masks = require "redco.models.images.sam2_masks"
local prompts = require "redco.models.images.sam2_prompts"
local vision = require "redco.models.families.sam2_vision_model"

local n_images = 3  -- that the decoder reads
local directions = "shared_image_embedding.positional_embedding"
local parts = { vision_config = vision, prompt_encoder_config = prompts,
  mask_decoder_config = masks }
local prefixes = { vision = "vision_encoder.", prompts = "prompt_encoder.",
  masks = "mask_decoder." }

local sam = {
  model_type = "sam2",
  models = "SAM 2 and SAM 2.1",
  remarks = "gives masks, their scores, and logits of there being an object; of videos the images "
    .. "alone",
  architecture = "Sam2Model",
  task = "mask_generation",
  base_model_prefix = "sam2",
  inputs = { "pixel_values", "image_embeddings", "input_points", "input_labels", "input_boxes",
    "input_masks", "multimask_output", "original_sizes" },
  labels = {},
  nullable = { "vision_config", "prompt_encoder_config", "mask_decoder_config" },
  defaults = { vision_config = {}, prompt_encoder_config = {}, mask_decoder_config = {},
    initializer_range = 0.02 },
  -- Weights of the memory of video models.
  ignored = { "^memory_", "^mask_downsample", "^object_pointer_proj%.", "^no_object_pointer$",
    "^temporal_positional_encoding_projection_layer%.", "^no_memory_positional_encoding$",
    "^occlusion_spatial_embedding_parameter$" },
  buffers = { [directions] = true },
}

function sam.config_parts() return parts end

-- Files contain the table of positions under both names, or only under that of the whole image.
function sam.copies()
  return { [prefixes.prompts .. prompts.table_name] = directions }
end

function sam.complete(c, is_file)
  for kind, part in pairs(parts) do
    if c[kind] ~= nil and type(c[kind]) ~= "table" then
      fail("sam2: the configuration's %s is no table", kind)
    end
    c[kind] = complete_config(part, c[kind] or {}, is_file)
  end
end

-- Whether a configuration has the rows and columns of each image.
local function are_sides(list)
  for i = 1, n_images do
    local sides = type(list) == "table" and list[i]
    if type(sides) ~= "table" or type(sides[1]) ~= "number" or type(sides[2]) ~= "number" then
      return false
    end
  end
  return true
end

function sam.check(c)
  local image, size = c.vision_config, c.vision_config.fpn_hidden_size
  for _, kind in ipairs { "prompt_encoder_config", "mask_decoder_config" } do
    if c[kind].hidden_size ~= size then
      fail("sam2: the hidden_size of its %s is %d, expected fpn_hidden_size, %d", kind,
        c[kind].hidden_size, size)
    end
  end
  if image.num_feature_levels ~= n_images then
    fail("sam2: num_feature_levels is %d, expected %d: the decoder reads as many images",
      image.num_feature_levels, n_images)
  end
  if not are_sides(image.backbone_feature_sizes) then
    fail("sam2: backbone_feature_sizes: expected the rows and columns of %d images, the largest "
      .. "first", n_images)
  end
end

function sam.add_parameters(c, add)
  local function with(prefix) return blocks.add_with_prefix(add, prefix) end
  add("no_memory_embedding", { 1, 1, c.vision_config.fpn_hidden_size }, blocks.zeros)
  prompts.add_table(c.prompt_encoder_config, add, directions)
  vision.add_parameters(c.vision_config, with(prefixes.vision))
  prompts.add_parameters(c.prompt_encoder_config, with(prefixes.prompts), c.initializer_range)
  masks.add_parameters(c.mask_decoder_config, with(prefixes.masks), c.initializer_range)
end

-- Raises an error unless the images have the configured sides, to which the prompts are relative.
local function check_images(c, images)
  local side = prompts.side(c.prompt_encoder_config)
  for i, image in ipairs(images) do
    local sides = c.vision_config.backbone_feature_sizes[i]
    local expected = i == n_images and { side, side } or sides
    for _, pair in ipairs { sides, expected } do
      if image:size(2) ~= pair[1] or image:size(3) ~= pair[2] then
        fail("sam2: an image has %d x %d places in stage %d, expected %d x %d by %s: give images "
          .. "of %d x %d pixels", image:size(2), image:size(3), i, pair[1], pair[2],
          pair == sides and "backbone_feature_sizes" or "prompt_encoder_config",
          c.prompt_encoder_config.image_size, c.prompt_encoder_config.image_size)
      end
    end
  end
end

function sam.new_functions(c)
  local see = vision.new_images(c.vision_config)
  local read, decode = prompts.new(c.prompt_encoder_config), masks.new(c.mask_decoder_config)

  local function seen(params, inputs, o)
    if inputs.pixel_values == nil then fail "sam2: inputs.pixel_values are missing" end
    return see(blocks.with_prefix(params, prefixes.vision), inputs.pixel_values, o)
  end

  local function embeddings(params, inputs, o)
    local images, decoder = seen(params, inputs, o), blocks.with_prefix(params, prefixes.masks)
    check_images(c, images)
    return { masks.of_larger(decoder, 0, images[1]), masks.of_larger(decoder, 1, images[2]),
      images[3] + params.no_memory_embedding:view { 1, -1, 1, 1 } }
  end

  local function images_of(params, inputs, o)
    local given = inputs.image_embeddings
    if given == nil then return embeddings(params, inputs, o) end
    if inputs.pixel_values then
      fail "sam2: inputs have pixel_values and image_embeddings, expected one of them"
    end
    if type(given) ~= "table" or #given ~= n_images then
      fail("sam2: inputs.image_embeddings: expected the list of %d tensors that "
        .. "model.get_image_embeddings returns", n_images)
    end
    return given
  end

  return {
    get_image_embeddings = embeddings,
    output = function(params, inputs, o)
      local images = images_of(params, inputs, o)
      local fixed = params[directions]:detach()
      local tokens, added = read(blocks.with_prefix(params, prefixes.prompts), fixed, inputs,
        images[n_images])
      local places = prompts.positions_of_image(c.prompt_encoder_config, fixed)
      return decode(blocks.with_prefix(params, prefixes.masks), images, tokens, added, places,
        inputs.multimask_output ~= false, o)
    end,
    hidden_states = function(params, inputs, o)
      local _, stages = seen(params, inputs, o)
      return stages[#stages], stages
    end,
  }
end

return sam
