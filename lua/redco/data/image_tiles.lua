--- How processors of models that read images with texts cut them into tiles, or keep their sizes.
--- Each function takes a uint8 image [3, height, width], the options, and resize(image, height,
--- width); it returns a list of tiles, uint8, and a table about the image: n_tiles, and what texts
--- and models need to know.
local ffi = require "ffi"
local torch = require "redco.torch"

local tiles = {}

local function floor_half(n) return math.floor(n / 2) end

-- Rounds a number to float32.
local function float32(x) return tonumber(ffi.new("float", x)) end

-- Returns the tiles of an image, row by row.
local function cut(image, height, width)
  local list = {}
  for top = 0, image:size(1) - height, height do
    for left = 0, image:size(2) - width, width do
      list[#list + 1] = image:narrow(1, top, height):narrow(2, left, width)
    end
  end
  return list
end

-- Returns an image in the middle of a larger one of one colour for each channel.
local function framed(image, height, width, colours)
  local whole = torch.tensor(colours, { dtype = "uint8" }):view { 3, 1, 1 }
    :expand { 3, height, width }:clone()
  local from_height, from_width = image:size(1), image:size(2)
  whole:narrow(1, floor_half(height - from_height), from_height)
    :narrow(2, floor_half(width - from_width), from_width):copy_(image)
  return whole
end

local black = { 0, 0, 0 }

-- Returns the size whose longer side is `long`, at most 4096 pixels. `long` makes the shorter side
-- even, by rounding up.
local function with_long_side(height, width, long)
  local ratio = width / height
  local function short(n) return math.max(1, n % 2 == 0 and n or n + 1) end
  if width >= height then
    height, width = short(math.floor(long / ratio)), long
  else
    height, width = long, short(math.floor(long * ratio))
  end
  ratio = width / height
  if width >= height and width > 4096 then return math.max(1, math.floor(4096 / ratio)), 4096 end
  if height > width and height > 4096 then return 4096, math.max(1, math.floor(4096 * ratio)) end
  return height, width
end

--- Idefics 3 and SmolVLM: tiles of a size, and the whole image small behind them.
function tiles.with_whole_last(image, o, resize)
  local side = o.max_image_size.longest_edge
  if o.do_resize then
    local height, width = o.size.height, o.size.width
    if o.size.longest_edge then
      height, width = with_long_side(image:size(1), image:size(2), o.size.longest_edge)
    end
    image = resize(image, height, width)
  end
  if not o.do_image_splitting then
    return { resize(image, side, side) }, { rows = 0, columns = 0 }
  end
  local height, width = image:size(1), image:size(2)
  local function up(n) return math.ceil(n / side) * side end
  local ratio = width / height
  if width >= height then
    width = up(width)
    height = up(math.floor(width / ratio))
  else
    height = up(height)
    width = up(math.floor(height * ratio))
  end
  image = resize(image, height, width)
  if height == side and width == side then return { image }, { rows = 0, columns = 0 } end
  local list = cut(image, side, side)
  list[#list + 1] = resize(image, side, side)
  return list, { rows = height / side, columns = width / side }
end

-- Returns the numbers of columns and rows of tiles nearest to the aspect ratio of an image; among
-- equally near ones, the most tiles of which an image of this size fills half.
local function nearest_grid(height, width, o)
  local grids, best, best_distance = {}, { 1, 1 }, math.huge
  for columns = 1, o.max_patches do
    for rows = 1, o.max_patches do
      local n = columns * rows
      if n >= o.min_patches and n <= o.max_patches then grids[#grids + 1] = { columns, rows } end
    end
  end
  table.sort(grids, function(a, b)
    local m, n = a[1] * a[2], b[1] * b[2]
    return m < n or m == n and a[1] < b[1]
  end)
  for _, grid in ipairs(grids) do
    local distance = math.abs(width / height - grid[1] / grid[2])
    local is_filled = height * width > 0.5 * o.size.height * o.size.width * grid[1] * grid[2]
    if distance < best_distance or distance == best_distance and is_filled then
      best, best_distance = grid, distance
    end
  end
  return best[1], best[2]
end

--- InternVL: tiles in the shape of the image, and the whole image small if they are several.
function tiles.nearest_shape(image, o, resize)
  local height, width = o.size.height, o.size.width
  if not o.crop_to_patches or o.max_patches <= 1 then
    return { o.do_resize and resize(image, height, width) or image }, {}
  end
  local columns, rows = nearest_grid(image:size(1), image:size(2), o)
  local list = cut(resize(image, height * rows, width * columns), height, width)
  if #list > 1 then list[#list + 1] = resize(image, height, width) end
  return list, {}
end

--- Pixtral: the image, not larger than a size, in whole patches.
function tiles.whole_patches(image, o, resize)
  local height, width = image:size(1), image:size(2)
  if o.do_resize then
    local ratio = math.max(height / (o.size.longest_edge or o.size.height),
      width / (o.size.longest_edge or o.size.width))
    if ratio > 1 then height, width = math.floor(height / ratio), math.floor(width / ratio) end
    local function up(n, patch) return math.ceil(n / patch) * patch end
    height, width = up(height, o.patch_size.height), up(width, o.patch_size.width)
    image = resize(image, height, width)
  end
  return { image }, { image_sizes = { height, width } }
end

--- Returns the height and width among `sizes`, pairs of them, that keeps most of an image and is
--- least larger: transformers' select_best_resolution.
function tiles.best_resolution(height, width, sizes)
  local best, most, least = nil, 0, math.huge
  for _, size in ipairs(sizes) do
    local scale = math.min(size[2] / width, size[1] / height)
    local kept = math.min(math.floor(width * scale) * math.floor(height * scale), height * width)
    local wasted = size[1] * size[2] - kept
    if kept > most or kept == most and wasted < least then
      best, most, least = size, kept, wasted
    end
  end
  return best[1], best[2]
end

--- LLaVA-NeXT and LLaVA-OneVision: the whole image small, and tiles of the best of some sizes
--- behind it, `tile` pixels long. With is_single = false, only the whole image, in a square.
function tiles.with_whole_first(image, o, resize, is_single, tile)
  local height, width = image:size(1), image:size(2)
  local info, side = { image_sizes = { height, width } }, o.size.shortest_edge or o.size.height
  tile, info.is_single = tile or side, is_single
  if is_single == false then
    local colours, long = {}, math.max(height, width)
    for i, mean in ipairs(o.image_mean) do colours[i] = math.floor(mean * 255) end
    return { resize(framed(image, long, long, colours), side, o.size.width or side) }, info
  end
  local to_height, to_width = tiles.best_resolution(height, width, o.image_grid_pinpoints)
  local across, down = to_width / width, to_height / height
  local inner
  if across < down then
    inner = resize(image, math.min(math.ceil(height * across), to_height), to_width)
  else
    inner = resize(image, to_height, math.min(math.ceil(width * down), to_width))
  end
  local list = cut(framed(inner, to_height, to_width, black), tile, tile)
  table.insert(list, 1, resize(image, side, side))
  return list, info
end

-- Returns the rows and columns of tiles of `side` pixels for an image: of those in which it need
-- not shrink the ones that scale it least, or most with resize_to_max_canvas; else those that
-- shrink it least; of equal ones the fewest tiles.
local function best_canvas(height, width, side, o)
  local best = { value = -math.huge }
  for rows = 1, o.max_patches do
    for columns = 1, math.floor(o.max_patches / rows) do
      local scale = math.min(float32(rows * side / height), float32(columns * side / width))
      local fits = scale >= 1
      local value = fits and not o.resize_to_max_canvas and -scale or scale
      local is_better = fits and not best.fits
      if fits == (best.fits or false) then
        is_better = value > best.value or value == best.value and rows * columns < best.n
      end
      if is_better then
        best = { rows = rows, columns = columns, n = rows * columns, fits = fits, value = value }
      end
    end
  end
  return best.rows, best.columns
end

-- Returns the largest height and width of an image in a canvas of its shape; without
-- resize_to_max_canvas it grows to one tile at most. Scales from a length of the canvas are of
-- float32 in transformers, and others not.
local function size_in_canvas(height, width, canvas, side, o)
  local function scale_of(length, of_canvas)
    local wished = math.max(length, side)
    local is_rounded = o.resize_to_max_canvas or of_canvas < wished
    local new = is_rounded and of_canvas or wished
    return new, is_rounded and float32(new / length) or new / length, is_rounded
  end
  local function scaled(length, scale, is_rounded, most)
    local new = is_rounded and float32(length * scale) or length * scale
    return math.max(1, math.min(math.floor(new), most))
  end
  local most_height, down, down_is_rounded = scale_of(height, canvas[1])
  local most_width, across, across_is_rounded = scale_of(width, canvas[2])
  local is_wide = across < down
  if down_is_rounded or across_is_rounded then is_wide = float32(across) < float32(down) end
  if is_wide then return scaled(height, across, across_is_rounded, most_height), most_width end
  return most_height, scaled(width, down, down_is_rounded, most_width)
end

--- Llama 4: tiles of the best canvas, black at the right and at the bottom, and the whole image as
--- one tile if they are several.
function tiles.in_canvas(image, o, resize)
  local side, height, width = o.size.height, image:size(1), image:size(2)
  local rows, columns = best_canvas(height, width, side, o)
  local canvas = { rows * side, columns * side }
  local new_height, new_width = size_in_canvas(height, width, canvas, side, o)
  local list = cut(torch.constant_pad_nd(resize(image, new_height, new_width),
    { 0, canvas[2] - new_width, 0, canvas[1] - new_height }), side, side)
  if #list > 1 then list[#list + 1] = resize(image, side, side) end
  return list, { rows = rows, columns = columns }
end

return tiles
