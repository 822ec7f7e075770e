--- Images as rows of patches, as SigLIP 2 reads them, and maps of labels at another size.
local fail = require "redco.fail"
local torch = require "redco.torch"

local image_rows = {}

--- Returns the height and width to which an image is resized: multiples of patch_size, at most
--- max_num_patches patches, about the same shape. The search is that of transformers, to the bit.
function image_rows.target_size(o, height, width)
  local side, precision = o.patch_size.height, 1e-5
  local function scaled(scale, size)
    return math.max(side, math.ceil(size * scale / side) * side)
  end
  local low, high = precision / 10, 100
  while high - low >= precision do
    local scale = (low + high) / 2
    local n = (scaled(scale, height) / side) * (scaled(scale, width) / side)
    if n <= o.max_num_patches then low = scale else high = scale end
  end
  return scaled(low, height), scaled(low, width)
end

-- Returns the patches [rows * columns, side * side * 3] of an image, and the rows and columns.
local function patches_of(image, side)
  local channels, height, width = unpack(image.shape)
  local rows, columns = math.floor(height / side), math.floor(width / side)
  local patches = image:narrow(1, 0, rows * side):narrow(2, 0, columns * side)
    :reshape { channels, rows, side, columns, side }:permute { 1, 3, 2, 4, 0 }
  return patches:reshape { rows * columns, side * side * channels }, rows, columns
end

--- Returns the inputs of a model of images of different sizes. Rows are padded with zeros.
function image_rows.inputs(images, _, o)
  local n, values, shapes, masks = o.max_num_patches, {}, {}, {}
  for i, image in ipairs(images) do
    local patches, rows, columns = patches_of(image, o.patch_size.height)
    local n_own = patches:size(0)
    if n_own == 0 or n_own > n then
      fail("image_processor: an image has %d patches, expected 1 to max_num_patches, %d", n_own, n)
    end
    values[i] = torch.cat({ patches, torch.zeros { n - n_own, patches:size(1) } }, 0)
    masks[i] = torch.arange(n):lt(n_own):to "int64"
    shapes[i] = { rows, columns }
  end
  return { pixel_values = torch.stack(values), pixel_attention_mask = torch.stack(masks),
    spatial_shapes = torch.tensor(shapes) }
end

-- Adds up the places like Pillow, so that the sums are rounded alike.
local function nearest_places(n_old, n_new)
  local places, step = {}, n_old / n_new
  local place = step * 0.5
  for i = 1, n_new do
    places[i] = math.min(math.floor(place), n_old - 1)
    place = place + step
  end
  return torch.tensor(places, { dtype = "int64" })
end

--- Returns a map [height, width] at another size.
function image_rows.nearest(map, height, width)
  return map:index_select(0, nearest_places(map:size(0), height):to(map.device))
    :index_select(1, nearest_places(map:size(1), width):to(map.device))
end

return image_rows
