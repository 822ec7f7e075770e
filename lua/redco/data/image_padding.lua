--- Images of different sizes in one batch, as DETR reads them: zeros at the right and the bottom.
local fail = require "redco.fail"
local torch = require "redco.torch"

local image_padding = {}

-- Returns the whole number nearest to x; of two the even one, as Python does.
local function round(x)
  local below = math.floor(x)
  local rest = x - below
  return (rest > 0.5 or rest == 0.5 and below % 2 == 1) and below + 1 or below
end

local function is_count(n) return type(n) == "number" and n >= 1 and n % 1 == 0 end

--- Reads `size`: {shortest_edge, longest_edge}, {height, width}, or in older files a number with
--- max_size.
function image_padding.read_size(where, o)
  local size = o.size
  if type(size) == "number" then
    size = { shortest_edge = size, longest_edge = o.max_size }
  end
  local keys = {}
  for key, value in pairs(type(size) == "table" and size or {}) do
    keys[#keys + 1] = is_count(value) and tostring(key) or "?"
  end
  table.sort(keys)
  local found = table.concat(keys, " ")
  if found ~= "longest_edge shortest_edge" and found ~= "height width" then
    fail("%s: size: expected {shortest_edge, longest_edge} or {height, width} in pixels", where)
  end
  o.size = size
end

--- Returns the height and width to which an image is resized: the shorter side has shortest_edge
--- pixels, unless the longer one had more than longest_edge.
function image_padding.target_size(o, height, width)
  local size = o.size
  if size.height then return size.height, size.width end
  local short, long = math.min(height, width), math.max(height, width)
  local new_short, exact = size.shortest_edge, size.shortest_edge
  if long / short * new_short > size.longest_edge then
    exact = size.longest_edge * short / long
    new_short = round(exact)
  end
  if short == new_short then return height, width end
  local new_long = math.floor(exact * long / short)
  if width < height then return new_long, new_short end
  return new_short, new_long
end

--- Returns images of different sizes as one tensor, with zeros at the right and at the bottom.
function image_padding.stacked(images)
  local height, width, padded = 0, 0, {}
  for _, image in ipairs(images) do
    height, width = math.max(height, image:size(-2)), math.max(width, image:size(-1))
  end
  for i, image in ipairs(images) do
    padded[i] = torch.constant_pad_nd(image,
      { 0, width - image:size(-1), 0, height - image:size(-2) })
  end
  return torch.stack(padded)
end

--- Returns pixel_values [batch, 3, height, width], and pixel_mask [batch, height, width], 1 for the
--- pixels of images.
function image_padding.inputs(images, _, o)
  if not o.do_pad then return torch.stack(images) end
  local masks = {}
  for i, image in ipairs(images) do masks[i] = torch.ones_like(image[0], { dtype = "int64" }) end
  return { pixel_values = image_padding.stacked(images),
    pixel_mask = image_padding.stacked(masks) }
end

return image_padding
