--- Prepares images for a vision model as Hugging Face's image processors do with Pillow: resize,
--- centre-crop or cut into tiles, rescale, normalise.
local fail = require "redco.fail"
local image_padding = require "redco.data.image_padding"
local image_rows = require "redco.data.image_rows"
local names_of = require "redco.names_of"
local hub = require "redco.hub"
local native = require "redco.native"
local processors = require "redco.data.image_processors"
local processor_config = require "redco.data.processor_config"
local registry = require "redco.registry"
local torch = require "redco.torch"

local filters = { [1] = "Lanczos", [2] = "bilinear", [3] = "bicubic" }  -- Pillow's numbers

local function centre_crop(image, height, width)
  local _, from_height, from_width = unpack(image.shape)
  if from_height < height or from_width < width then
    fail("image_processor: an image of %d x %d pixels after resizing is smaller than crop_size, "
      .. "%d x %d", from_width, from_height, width, height)
  end
  return image:narrow(1, math.floor((from_height - height) / 2), height)
    :narrow(2, math.floor((from_width - width) / 2), width)
end

-- Returns the height and width to which an image of this height and width is resized.
local function target_size(o, height, width)
  local size = o.size
  if not size.shortest_edge then return size.height, size.width end
  local short, long = math.min(height, width), math.max(height, width)
  local new_long = math.floor(size.shortest_edge * long / short)
  if height <= width then return size.shortest_edge, new_long end
  return new_long, size.shortest_edge
end

local are_sizes = { size = true, crop_size = true, patch_size = true, max_image_size = true }

-- Keys that do not change an image.
local harmless = { "_valid_processor_keys", "aspect_ratio_setting", "auto_map", "data_format",
  "default_to_square", "device", "disable_grouping", "do_convert_rgb", "feature_extractor_type",
  "image_processor_type", "image_seq_length", "input_data_format", "processor_class",
  "return_row_col_info", "return_tensors", "video_sampling" }

local function processor_of(where, config)
  local kind = config.image_processor_type or config.feature_extractor_type
  if kind == nil then return { defaults = {} } end
  local name = tostring(kind):gsub("FeatureExtractor$", "ImageProcessor"):gsub("Fast$", "")
    :gsub("Pil$", "")
  return processors.list[name] or fail("%s: the processor %s is not supported, only %s", where,
    kind, table.concat(names_of(processors.list), ", ")), kind
end

-- Returns the defaults of all options.
local function defaults_of(processor)
  local found = {}
  for _, list in ipairs { processors.defaults, processor.defaults } do
    for key, value in pairs(list) do found[key] = value end
  end
  return found
end

-- Refuses unknown keys: they may stand for a step that is not supported.
local function refuse_unknown(where, config, defaults)
  local known = {}
  for key in pairs(defaults) do known[key] = true end
  for _, key in ipairs(harmless) do known[key] = true end
  for key, value in pairs(config) do
    if not known[key] and value ~= false then
      fail("%s: %s is not supported", where, key)
    end
  end
end

local function is_count(n) return type(n) == "number" and n >= 1 and n % 1 == 0 end

-- Returns {height, width}, or a table with the key `edge`. A size is such a table, a list of two
-- numbers or, in older files, one number.
local function size_of(where, key, size, edge, number_is_edge)
  local found = size
  if type(size) == "number" then
    found = number_is_edge and { [edge] = size } or { height = size, width = size }
  elseif type(size) == "table" and #size == 2 then
    found = { height = size[1], width = size[2] }
  end
  local is_known = type(found) == "table"
  if is_known then
    for name in pairs(found) do
      is_known = is_known and (name == "height" or name == "width" or name == edge)
    end
    local has_edge = edge and found[edge]
    local is_box = is_count(found.height) and is_count(found.width) and not has_edge
    local is_edge = has_edge and is_count(has_edge) and not (found.height or found.width)
    is_known = is_known and (is_box or is_edge)
  end
  return is_known and found or fail("%s: %s: expected {height, width}%s in pixels", where, key,
    edge and (" or {%s}"):format(edge) or "")
end

local function check_grid(where, sizes)
  for _, size in ipairs(sizes) do
    if type(size) ~= "table" or not is_count(size[1]) or not is_count(size[2]) then
      fail("%s: image_grid_pinpoints: expected pairs of a height and a width in pixels", where)
    end
  end
end

-- Reads the options that are sizes. Without a processor's name, a number is the length of the
-- shorter side if the image is cropped.
local function read_sizes(where, o, processor, kind)
  local edge = processor.has_longest and "longest_edge"
    or (not kind or processor.scales_shorter_side) and "shortest_edge"
  local number_is_edge = processor.scales_shorter_side
  if not kind then number_is_edge = o.do_center_crop end
  if processor.read_size then
    processor.read_size(where, o)
  else
    o.size = size_of(where, "size", o.size, edge, number_is_edge)
  end
  for _, key in ipairs { "crop_size", "patch_size" } do
    if o[key] then o[key] = size_of(where, key, o[key]) end
  end
  if o.max_image_size then
    o.max_image_size = size_of(where, "max_image_size", o.max_image_size, "longest_edge", true)
    if not o.max_image_size.longest_edge then
      fail("%s: max_image_size: expected {longest_edge} in pixels", where)
    end
  end
  if o.image_grid_pinpoints then check_grid(where, o.image_grid_pinpoints) end
end

-- Keys that have other names in older files.
local renamed = { reduce_labels = "do_reduce_labels" }

local function with_new_names(config)
  local found = {}
  for key, value in pairs(config) do found[renamed[key] or key] = value end
  return found
end

--- Reads the options of a preprocessor_config.json. Returns them and the processor's facts.
local function read_config(where, config)
  config = with_new_names(config)
  local processor, kind = processor_of(where, config)
  local defaults, o = defaults_of(processor), {}
  refuse_unknown(where, config, defaults)
  for key, default in pairs(defaults) do
    o[key] = config[key]
    if o[key] == nil then o[key] = default end
    if not are_sizes[key] and type(o[key]) ~= type(default) then
      fail("%s: %s: expected a %s, got %s", where, key, type(default), native.describe(o[key]))
    end
  end
  if kind and o.do_center_crop and not processor.crops then
    fail("%s: do_center_crop: a %s does not crop", where, kind)
  end
  read_sizes(where, o, processor, kind)
  if not filters[o.resample] then
    fail("%s: resample: unknown filter %s; expected 1 (Lanczos), 2 (bilinear) or 3 (bicubic)",
      where, o.resample)
  end
  for _, key in ipairs { "image_mean", "image_std" } do
    if #o[key] ~= 3 then fail("%s: %s: expected three numbers, got %d", where, key, #o[key]) end
  end
  if processor.complete then processor.complete(o) end
  return o, processor
end

local function check_image(image)
  if not torch.is_tensor(image) or image.dtype ~= "uint8" or image:dim() ~= 3
    or image:size(0) ~= 3 then
    fail("image_processor: expected images as uint8 [3, height, width], got %s",
      torch.is_tensor(image) and ("%s [%s]"):format(image.dtype, table.concat(image.shape, ", "))
        or type(image))
  end
end

--- Returns a list of images. Takes one image, a list or a batch.
local function list_of(images)
  if not torch.is_tensor(images) then return images end
  if images:dim() == 3 then return { images } end
  return torch.unbind(images)
end

-- Returns the tiles of each image, padded with zeros: [images, most, 3, height, width].
local function by_image(tiles, infos)
  local most, images, first = 0, {}, 0
  for _, info in ipairs(infos) do most = math.max(most, info.n_tiles) end
  local all = torch.stack(tiles)
  for i, info in ipairs(infos) do
    images[i] = torch.constant_pad_nd(all:narrow(0, first, info.n_tiles),
      { 0, 0, 0, 0, 0, 0, 0, most - info.n_tiles })
    first = first + info.n_tiles
  end
  return torch.stack(images)
end

-- Returns the maps of labels [batch, height, width], each resized to the nearest pixel.
local function prepared_maps(o, processor, maps)
  if not processor.reads_maps then
    fail("image_processor: maps of labels are for a SegformerImageProcessor")
  end
  if torch.is_tensor(maps) then maps = maps:dim() == 2 and { maps } or torch.unbind(maps) end
  local batch = {}
  for i, map in ipairs(maps) do
    if not torch.is_tensor(map) or map:dim() ~= 2 or map:is_floating_point() then
      fail("image_processor: map %d: expected integers [height, width], got %s", i,
        native.describe(map))
    end
    map = map:to "int64"
    if o.do_reduce_labels then
      local is_none = map:eq(0):logical_or(map:eq(255))
      map = torch.where(is_none, torch.full_like(map, 255), map - 1)
    end
    if o.do_resize then map = image_rows.nearest(map, o.size.height, o.size.width) end
    batch[i] = map
  end
  return torch.stack(batch)
end

local function stacked(tiles) return torch.stack(tiles) end

local layouts = { padded = image_padding.stacked, by_image = by_image }

local function with_changes(config, changes)
  local found = {}
  for _, list in ipairs { config, changes } do
    for key, value in pairs(list) do found[key] = value end
  end
  return found
end

return registry.define("redco.data.image_processor", [[
image_processor(config: string or table, changes: table = nil) -> function(images, maps = nil) -> Tensor [batch, 3, height, width] or table, infos: list of tables, Tensor or nil
Returns a function that prepares images for a model. It takes uint8 images [3, height, width], as a
list or a batch, and returns a float32 batch.

`config` is a folder with a preprocessor_config.json, or with a processor_config.json of version 5
of transformers, a name of the Hub, or a table with the same keys. `changes` has keys that count
instead of those.
Supported processors of transformers are ViTImageProcessor, DeiTImageProcessor, BeitImageProcessor,
BitImageProcessor, CLIPImageProcessor, ConvNextImageProcessor, RTDetrImageProcessor,
Sam2ImageProcessor, SegformerImageProcessor, SiglipImageProcessor, and Gemma3ImageProcessor without
pan and scan, and these:

- Idefics3ImageProcessor, SmolVLMImageProcessor and GotOcr2ImageProcessor, of InternVL, cut images
  into tiles. The batch has the tiles of one image behind those of the other.
- Llama4ImageProcessor does so, and rounds colours to bfloat16, as transformers does.
- LlavaNextImageProcessor and LlavaOnevisionImageProcessor do so, too; the result is [images, most
  tiles, 3, height, width] with zeros for missing tiles.
- PixtralImageProcessor keeps the sizes of images; zeros fill the batch at the right and at the
  bottom.
- Qwen2VLImageProcessor makes patches, [images, most patches, numbers], with zeros behind those of
  smaller images.
- DetrImageProcessor returns a table of a model's inputs: pixel_values, with zeros at the right and
  at the bottom of smaller images, and pixel_mask [batch, height, width].
- Siglip2ImageProcessor returns a table with pixel_values [batch, patches, 3 * patch_size *
  patch_size], pixel_attention_mask [batch, patches], and spatial_shapes [batch, 2], the rows and
  columns of patches.
- Gemma4ImageProcessor returns a table with pixel_values [batch, patches, 3 * patch_size *
  patch_size] and image_position_ids [batch, patches, 2], the column and row of each patch, or -1.

`infos` has a table for each image: n_tiles; `rows` and `columns` of tiles; image_sizes, {height,
width}; image_grid_thw, {1, rows, columns} of patches; num_soft_tokens_per_image of Gemma 4.

With a SegformerImageProcessor `maps` are the classes of the pixels of each image, integers [height,
width]; the third result has them at the size of the batch, int64 [batch, height, width]. With
do_reduce_labels class 1 becomes 0 and so on, and 0 becomes 255, which is none.

Other processors, and keys that stand for other steps, raise an error. The result equals Pillow's bit
for bit. Since Pillow 13 columns are resized before rows where that is less work, and rounding gives
slightly other colours; {pillow = 12} as `changes` gives those of older ones. A processor whose name ends in Fast gives the result of the slow one. Sam2ImageProcessor and
Llama4ImageProcessor, which have no slow one in transformers, give that of Pillow.]],
function(config, changes)
  local where = "image_processor"
  if type(config) == "string" then
    local dir = hub.path("data.image_processor", config, "processor")
    config, where = processor_config(dir, "image_processor")
  end
  if type(config) ~= "table" then
    fail("%s: expected a folder or a table, got %s", where, native.describe(config))
  end
  local o, processor = read_config(where, with_changes(config, changes))
  local mean = torch.tensor(o.image_mean, { dtype = "float32" }):view { 3, 1, 1 }
  local std = torch.tensor(o.image_std, { dtype = "float32" }):view { 3, 1, 1 }

  local function resize(image, height, width)
    if image:size(1) == height and image:size(2) == width then return image end
    return native.image_resize(image:contiguous(), height, width, o.resample, o.pillow)
  end

  local function resized_and_cropped(image)
    if o.do_resize then
      image = resize(image, (processor.target_size or target_size)(o, image:size(1), image:size(2)))
    end
    return o.do_center_crop and centre_crop(image, o.crop_size.height, o.crop_size.width) or image
  end

  local cut = processor.cut or function(image) return { resized_and_cropped(image) }, {} end

  local is_narrow = processor.dtype and o.do_rescale and o.do_normalize
  if is_narrow then mean, std = mean:to(processor.dtype), std:to(processor.dtype) end

  local function rescaled(image)
    if is_narrow then
      return ((image:to(processor.dtype) * o.rescale_factor - mean) / std):float()
    end
    if o.do_rescale then image = image:double() * o.rescale_factor end
    image = image:float()
    return o.do_normalize and (image - mean) / std or image
  end

  return function(images, maps, are_single)
    local tiles, infos = {}, {}
    for i, image in ipairs(list_of(images)) do
      check_image(image)
      local own, info = cut(image:cpu(), o, resize, are_single and are_single[i])
      for _, tile in ipairs(own) do
        if processor.crops and processor.cut then tile = resized_and_cropped(tile) end
        tiles[#tiles + 1] = rescaled(tile)
      end
      info.n_tiles, infos[i] = #own, info
    end
    if #infos == 0 then fail("image_processor: there are no images") end
    local layout = layouts[processor.layout] or processor.layout or stacked
    return layout(tiles, infos, o), infos, maps and prepared_maps(o, processor, maps) or nil
  end
end)
