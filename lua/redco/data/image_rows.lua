--- Images as rows of patches, as SigLIP 2 and Gemma 4 read them, and maps of labels at another
--- size.
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

--- Refuses a number of tokens that Gemma 4 was not trained with.
function image_rows.check_tokens(o)
  for _, n in ipairs { 70, 140, 280, 560, 1120 } do
    if o.max_soft_tokens == n then return end
  end
  fail("image_processor: max_soft_tokens is %d, expected 70, 140, 280, 560 or 1120",
    o.max_soft_tokens)
end

--- Returns the largest height and width of about the same shape that are whole squares of
--- pooling_kernel_size ^ 2 patches, at most max_soft_tokens squares.
function image_rows.size_in_squares(o, height, width)
  local most, side = o.max_soft_tokens, o.pooling_kernel_size * o.patch_size.height
  local scale = math.sqrt(most * side ^ 2 / (height * width))
  local rows, columns = math.floor(scale * height / side), math.floor(scale * width / side)
  if rows == 0 and columns > 0 then
    rows, columns = 1, math.min(math.floor(width / height), most)
  elseif columns == 0 and rows > 0 then
    rows, columns = math.min(math.floor(height / width), most), 1
  end
  return rows * side, columns * side
end

-- Returns the patches [rows * columns, side * side * 3] of an image, and the rows and columns.
local function patches_of(image, side)
  local channels, height, width = unpack(image.shape)
  local rows, columns = math.floor(height / side), math.floor(width / side)
  local patches = image:narrow(1, 0, rows * side):narrow(2, 0, columns * side)
    :reshape { channels, rows, side, columns, side }:permute { 1, 3, 2, 4, 0 }
  return patches:reshape { rows * columns, side * side * channels }, rows, columns
end

-- Returns patches [n_own, numbers] with zeros behind them, [n, numbers].
local function filled_up(patches, n, name)
  local n_own = patches:size(0)
  if n_own == 0 or n_own > n then
    fail("image_processor: an image has %d patches, expected 1 to %s, %d", n_own, name, n)
  end
  return torch.constant_pad_nd(patches, { 0, 0, 0, n - n_own })
end

--- Returns the inputs of a model of images of different sizes. Rows are padded with zeros.
function image_rows.inputs(images, _, o)
  local n, values, shapes, masks = o.max_num_patches, {}, {}, {}
  for i, image in ipairs(images) do
    local patches, rows, columns = patches_of(image, o.patch_size.height)
    local n_own = patches:size(0)
    values[i] = filled_up(patches, n, "max_num_patches")
    masks[i] = torch.arange(n):lt(n_own):to "int64"
    shapes[i] = { rows, columns }
  end
  return { pixel_values = torch.stack(values), pixel_attention_mask = torch.stack(masks),
    spatial_shapes = torch.tensor(shapes) }
end

--- Returns the inputs of a model that reads patches with their columns and rows. Patches are padded
--- with zeros, places with -1.
function image_rows.inputs_with_places(images, infos, o)
  local square = o.pooling_kernel_size ^ 2
  local n, values, places = o.max_soft_tokens * square, {}, {}
  for i, image in ipairs(images) do
    local patches, rows, columns = patches_of(image, o.patch_size.height)
    values[i] = filled_up(patches, n, "max_soft_tokens * pooling_kernel_size ^ 2")
    local numbers = torch.arange(rows * columns)
    local place = torch.stack({ numbers % columns,
      numbers:div(columns, { rounding_mode = "floor" }) }, -1)
    places[i] = torch.constant_pad_nd(place, { 0, 0, 0, n - rows * columns }, -1)
    infos[i].num_soft_tokens_per_image = math.floor(rows * columns / square)
  end
  return { pixel_values = torch.stack(values), image_position_ids = torch.stack(places) }
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
