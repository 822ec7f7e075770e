--- From images to what a vision model takes, as the image processors of Hugging Face do it with
--- Pillow: resize, cut out the middle, rescale, normalise.
local fail = require "redco.fail"
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

--- The height and width an image of this height and width is resized to.
local function target_size(size, height, width)
  if not size.shortest_edge then return size.height, size.width end
  local short, long = math.min(height, width), math.max(height, width)
  local new_long = math.floor(size.shortest_edge * long / short)
  if height <= width then return size.shortest_edge, new_long end
  return new_long, size.shortest_edge
end

local defaults = {
  do_resize = true, resample = 2, do_center_crop = false, do_rescale = true,
  rescale_factor = 1 / 255, do_normalize = true, image_mean = { 0.5, 0.5, 0.5 },
  image_std = { 0.5, 0.5, 0.5 },
}

local function is_size(size)
  local function is_count(n) return type(n) == "number" and n >= 1 and n % 1 == 0 end
  return type(size) == "table"
    and (is_count(size.shortest_edge) or (is_count(size.height) and is_count(size.width)))
end

--- The options of a preprocessor_config.json; it has others, which change nothing here.
local function read_config(where, config)
  local o = {}
  for key, default in pairs(defaults) do
    o[key] = config[key]
    if o[key] == nil then o[key] = default end
    if type(o[key]) ~= type(default) then
      fail("%s: %s: expected a %s, got a %s", where, key, type(default), type(o[key]))
    end
  end
  -- A bare number is what older files have: a square, or the shorter side where one is cut out.
  o.size, o.crop_size = config.size or 224, config.crop_size or 224
  if type(o.size) == "number" then
    o.size = o.do_center_crop and { shortest_edge = o.size } or { height = o.size, width = o.size }
  end
  if type(o.crop_size) == "number" then
    o.crop_size = { height = o.crop_size, width = o.crop_size }
  end
  for _, key in ipairs { "size", "crop_size" } do
    if not is_size(o[key]) or (key == "crop_size" and not o[key].height) then
      fail("%s: %s: expected {height, width}%s in pixels", where, key,
        key == "size" and " or {shortest_edge}" or "")
    end
  end
  if not filters[o.resample] then
    fail("%s: resample: there is no filter %s, only 1 (Lanczos), 2 (bilinear), 3 (bicubic)", where,
      tostring(o.resample))
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

--- A list of images from one, a list or a batch.
local function list_of(images)
  if not torch.is_tensor(images) then return images end
  if images:dim() == 3 then return { images } end
  return torch.unbind(images)
end

return registry.define("redco.data.image_processor", [[
image_processor(config: string or table) -> function(images) -> Tensor [batch, 3, height, width]
What prepares images (uint8 [3, height, width], a list or a batch of them) for a model, as float32:
that of a folder with a preprocessor_config.json, or of a table like it. It follows Pillow to the
last bit.]], function(config)
  local where = "image_processor"
  if type(config) == "string" then
    where = config .. "/preprocessor_config.json"
    config = readers.json(where)
  end
  if type(config) ~= "table" then
    fail("%s: expected a folder or a table, got a %s", where, type(config))
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
