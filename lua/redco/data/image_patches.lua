--- Images as patches, as Qwen-VL's processors make them: sizes in whole squares of patches, near
--- those of the images, and the patches themselves.
local fail = require "redco.fail"
local torch = require "redco.torch"

local patches = {}

local longest_ratio = 200

-- Returns the whole number nearest to x; of two the even one, as Python does.
local function round(x)
  local below = math.floor(x)
  local rest = x - below
  return (rest > 0.5 or rest == 0.5 and below % 2 == 1) and below + 1 or below
end

-- Returns the multiples of `side` nearest to height and width with at least `least` and at most
-- `most` pixels.
local function target_size(height, width, side, least, most)
  local function times(n) return n * side end
  local rows, columns = round(height / side), round(width / side)
  if rows * columns * side ^ 2 > most then
    local scale = math.sqrt(height * width / most)
    rows = math.max(1, math.floor(height / scale / side))
    columns = math.max(1, math.floor(width / scale / side))
  elseif rows * columns * side ^ 2 < least then
    local scale = math.sqrt(least / (height * width))
    rows, columns = math.ceil(height * scale / side), math.ceil(width * scale / side)
  end
  return times(rows), times(columns)
end

--- Reads `size`, the least and the most pixels of an image: as min_pixels and max_pixels, or in
--- files of later versions as shortest_edge and longest_edge of the size.
function patches.read_size(where, o)
  local size = type(o.size) == "table" and o.size or {}
  o.min_pixels = o.min_pixels > 0 and o.min_pixels or size.shortest_edge or 56 * 56
  o.max_pixels = o.max_pixels > 0 and o.max_pixels or size.longest_edge or 28 * 28 * 1280
  for key in pairs(size) do
    if key ~= "shortest_edge" and key ~= "longest_edge" then
      fail("%s: size: expected {shortest_edge, longest_edge}, the least and the most pixels", where)
    end
  end
end

--- Returns the image in a size of whole squares of patches, in a list, and its image_grid_thw.
function patches.in_squares(image, o, resize)
  local patch, height, width = o.patch_size.height, image:size(1), image:size(2)
  local side = patch * o.merge_size
  if o.do_resize then
    if math.max(height, width) > longest_ratio * math.min(height, width) then
      fail("image_processor: an image has %d x %d pixels; a side may be at most %d times the other",
        width, height, longest_ratio)
    end
    height, width = target_size(height, width, side, o.min_pixels, o.max_pixels)
    image = resize(image, height, width)
  elseif height % side ~= 0 or width % side ~= 0 then
    fail("image_processor: an image has %d x %d pixels; without do_resize, sides must be multiples "
      .. "of patch_size * merge_size = %d", width, height, side)
  end
  return { image }, { image_grid_thw = { 1, height / patch, width / patch } }
end

-- Returns the patches of an image, [patches, numbers]; those of a feature are adjacent.
local function of_image(image, o)
  local patch, m = o.patch_size.height, o.merge_size
  local n_channels, height, width = unpack(image.shape)
  local all = image:view { n_channels, height / patch / m, m, patch, width / patch / m, m, patch }
    :permute { 1, 4, 2, 5, 0, 3, 6 }:unsqueeze(5)
  local shape = all.shape
  shape[6] = o.temporal_patch_size
  return all:expand(shape):reshape { height * width / patch ^ 2, -1 }
end

--- Returns the patches of images, [images, most patches, numbers], with zeros behind them.
function patches.stacked(images, _, o)
  local list, most = {}, 0
  for i, image in ipairs(images) do
    list[i] = of_image(image, o)
    most = math.max(most, list[i]:size(0))
  end
  for i, own in ipairs(list) do
    list[i] = torch.constant_pad_nd(own, { 0, 0, 0, most - own:size(0) })
  end
  return torch.stack(list)
end

return patches
