--- Prepares images for a vision model as Hugging Face's image processors do with Pillow: resize,
--- centre-crop, rescale, normalise.
local fail = require "redco.fail"
local names_of = require "redco.names_of"
local native = require "redco.native"
local readers = require "redco.data.readers"
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

--- Returns the height and width to which an image of this height and width is resized.
local function target_size(size, height, width)
  if not size.shortest_edge then return size.height, size.width end
  local short, long = math.min(height, width), math.max(height, width)
  local new_long = math.floor(size.shortest_edge * long / short)
  if height <= width then return size.shortest_edge, new_long end
  return new_long, size.shortest_edge
end

local half = { 0.5, 0.5, 0.5 }
local defaults = {
  do_resize = true, resample = 2, do_center_crop = false, do_rescale = true,
  rescale_factor = 1 / 255, do_normalize = true, image_mean = half, image_std = half,
  size = 224, crop_size = 224,
}

-- The processors of transformers that do these steps in this order: whether they crop, whether they
-- scale the shorter side, and the defaults that differ.
local processors = {
  ViTImageProcessor = { crops = false, defaults = {} },
  DeiTImageProcessor = { crops = true, defaults = { size = 256, resample = 3,
    do_center_crop = true } },
  CLIPImageProcessor = { crops = true, scales_shorter_side = true,
    defaults = { resample = 3, do_center_crop = true,
      image_mean = { 0.48145466, 0.4578275, 0.40821073 },
      image_std = { 0.26862954, 0.26130258, 0.27577711 } } },
  SiglipImageProcessor = { crops = false, defaults = { resample = 3 } },
  Gemma3ImageProcessor = { crops = false, defaults = {} },
}

-- Keys that do not change an image.
local harmless = { "_valid_processor_keys", "auto_map", "data_format", "default_to_square",
  "device", "disable_grouping", "do_convert_rgb", "feature_extractor_type", "image_processor_type",
  "image_seq_length", "input_data_format", "processor_class", "return_tensors" }

local function processor_of(where, config)
  local kind = config.image_processor_type or config.feature_extractor_type
  if kind == nil then return nil end
  local name = tostring(kind):gsub("FeatureExtractor$", "ImageProcessor"):gsub("Fast$", "")
  return processors[name] or fail("%s: the processor %s is not supported, only %s", where,
    kind, table.concat(names_of(processors), ", "))
end

-- Refuses unknown keys: they may stand for a step that is not supported.
local function refuse_unknown(where, config)
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

-- Returns {height, width} or {shortest_edge}. A size is such a table, a list of two numbers or, in
-- older files, one number.
local function size_of(where, key, size, allows_shortest, number_is_shortest)
  local found = size
  if type(size) == "number" then
    found = number_is_shortest and { shortest_edge = size } or { height = size, width = size }
  elseif type(size) == "table" and #size == 2 then
    found = { height = size[1], width = size[2] }
  end
  local is_known = type(found) == "table"
  if is_known then
    for name in pairs(found) do
      is_known = is_known and (name == "height" or name == "width" or name == "shortest_edge")
    end
    local is_box = is_count(found.height) and is_count(found.width) and not found.shortest_edge
    local is_shortest = allows_shortest and is_count(found.shortest_edge)
      and not (found.height or found.width)
    is_known = is_known and (is_box or is_shortest)
  end
  return is_known and found or fail("%s: %s: expected {height, width}%s in pixels", where, key,
    allows_shortest and " or {shortest_edge}" or "")
end

--- Reads the options of a preprocessor_config.json.
local function read_config(where, config)
  local processor = processor_of(where, config)
  refuse_unknown(where, config)
  local own, o = processor and processor.defaults or {}, {}
  for key, default in pairs(defaults) do
    if own[key] ~= nil then default = own[key] end
    o[key] = config[key]
    if o[key] == nil then o[key] = default end
    if key ~= "size" and key ~= "crop_size" and type(o[key]) ~= type(default) then
      fail("%s: %s: expected a %s, got %s", where, key, type(default), native.describe(o[key]))
    end
  end
  if processor and o.do_center_crop and not processor.crops then
    fail("%s: do_center_crop: a %s does not crop", where,
      config.image_processor_type or config.feature_extractor_type)
  end
  -- Without a processor's name, a number is the length of the shorter side if the image is cropped.
  local is_shortest = o.do_center_crop
  if processor then is_shortest = processor.scales_shorter_side end
  o.size = size_of(where, "size", o.size, not processor or processor.scales_shorter_side,
    is_shortest)
  o.crop_size = size_of(where, "crop_size", o.crop_size, false, false)
  if not filters[o.resample] then
    fail("%s: resample: unknown filter %s; expected 1 (Lanczos), 2 (bilinear) or 3 (bicubic)",
      where, o.resample)
  end
  for _, key in ipairs { "image_mean", "image_std" } do
    if #o[key] ~= 3 then fail("%s: %s: expected three numbers, got %d", where, key, #o[key]) end
  end
  return o
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

return registry.define("redco.data.image_processor", [[
image_processor(config: string or table) -> function(images) -> Tensor [batch, 3, height, width]
Returns a function that prepares images for a model. It takes uint8 images [3, height, width], as a
list or a batch, and returns a float32 batch.

`config` is a folder with a preprocessor_config.json, or a table with the same keys. Supported
processors of transformers are ViTImageProcessor, DeiTImageProcessor, CLIPImageProcessor,
SiglipImageProcessor and Gemma3ImageProcessor without pan and scan. Other processors, and keys that
stand for other steps, raise an error. The result equals Pillow's bit for bit. A processor whose name
ends in Fast gives the result of the slow one.]], function(config)
  local where = "image_processor"
  if type(config) == "string" then
    where = config .. "/preprocessor_config.json"
    config = readers.json(where)
  end
  if type(config) ~= "table" then
    fail("%s: expected a folder or a table, got %s", where, native.describe(config))
  end
  local o = read_config(where, config)
  local mean = torch.tensor(o.image_mean, { dtype = "float32" }):view { 3, 1, 1 }
  local std = torch.tensor(o.image_std, { dtype = "float32" }):view { 3, 1, 1 }

  local function prepared(image)
    check_image(image)
    if o.do_resize then
      local height, width = target_size(o.size, image:size(1), image:size(2))
      image = native.image_resize(image:cpu(), height, width, o.resample)
    end
    if o.do_center_crop then image = centre_crop(image, o.crop_size.height, o.crop_size.width) end
    if o.do_rescale then image = image:double() * o.rescale_factor end
    image = image:float()
    return o.do_normalize and (image - mean) / std or image
  end

  return function(images)
    local batch = {}
    for i, image in ipairs(list_of(images)) do batch[i] = prepared(image) end
    if #batch == 0 then fail("image_processor: there are no images") end
    return torch.stack(batch)
  end
end)
