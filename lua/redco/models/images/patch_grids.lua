--- Images of any size as grids of patches: where their patches and features stand.
---
--- pixel_values are [n, P, size of a patch], the patches of each image, filled up with zeros, and
--- image_grid_thw [n, 3] has the numbers of moments, rows and columns of patches of each image, or
--- zeros. So both can be split over processes by images. transformers has the patches of all images
--- in one dimension, [patches, size of a patch]; this is accepted.
---
--- Shapes: n images, P patches, S slots of an image. A feature stands for m x m patches, which are
--- adjacent in the order of patches. Slots are the places of features in the tower, in the order of
--- windows of w x w features; behind an image with fewer features, and in a window at its end,
--- slots are empty.
local fail = require "redco.fail"
local torch = require "redco.torch"

local grids = {}

local function floor_div(a, b) return a:div(b, { rounding_mode = "floor" }) end

local function is_planned(t) return t:to_local().device == "meta" end

local function listed(t) return table.concat(t.shape, ", ") end

local function check_shapes(model_type, pixels, grid)
  if not grid then fail("%s: inputs.image_grid_thw is missing", model_type) end
  local n_patches = pixels:dim() > 1 and pixels:dim() < 4 and grid:dim() == 2 and grid:size(1) == 3
    and (pixels:dim() == 2 or pixels:size(0) == grid:size(0))
  if not n_patches then
    fail("%s: pixel_values of [%s] do not fit image_grid_thw of [%s]; expected [images, patches, "
      .. "size] and [images, 3], or both with a dimension of rows before them", model_type,
      listed(pixels), listed(grid))
  end
end

-- Returns image_grid_thw [n, 3] on the CPU. The search for a layout has no values: it assumes that
-- all images are nearly square and fill the patches.
local function values_of(pixels, grid, m)
  if not is_planned(grid) then return grid:full():cpu():to "int64" end
  local n = grid:size(0)
  local n_patches = pixels:dim() == 3 and pixels:size(1) or pixels:size(0) / n
  local height = m * math.max(1, math.floor(math.sqrt(n_patches) / m))
  local width = m * math.max(1, math.floor(n_patches / height / m))
  return torch.tensor({ { 1, height, width } }):expand { n, 3 }
end

local function check(model_type, pixels, grid, m)
  local moments, counts = grid:select(1, 0):max():item(), grid:prod(1)
  if moments > 1 then
    fail("%s: image_grid_thw has images of %d moments: films are not supported", model_type,
      moments)
  end
  if grid:narrow(1, 1, 2):remainder(m):ne(0):any():item() then
    fail("%s: image_grid_thw has numbers of rows or columns that are no multiples of "
      .. "spatial_merge_size, %d", model_type, m)
  end
  local is_flat = pixels:dim() == 2
  local most = (is_flat and counts:sum() or counts:max()):item()
  local n_patches = pixels:size(is_flat and 0 or 1)
  if is_flat and most ~= n_patches or most > n_patches then
    fail("%s: image_grid_thw has %d patches%s, but pixel_values have %d", model_type, most,
      is_flat and "" or " in an image", n_patches)
  end
end

-- Groups pixel_values [patches, size] by image, [n, P, size]. Padding repeats arbitrary patches.
local function by_image(pixels, grid)
  local counts = grid:prod(1)
  local ends = counts:cumsum(0)
  local places = (ends - counts):unsqueeze(1) + torch.arange(counts:max():item()):unsqueeze(0)
  return torch.embedding(pixels, places:clamp(nil, pixels:size(0) - 1):to(pixels.device))
end

-- Returns rows, columns and numbers [n, S] of the features in the slots, and which are real.
local function slots_of(heights, widths, across, w)
  local down = floor_div(heights + (w - 1), w)
  local n_slots = math.max(1, (down * across):max():item()) * w * w
  local slots = torch.arange(n_slots):unsqueeze(0)
  local windows, inside = floor_div(slots, w * w), slots:remainder(w * w)
  local rows = floor_div(windows, across) * w + floor_div(inside, w)
  local columns = windows:remainder(across) * w + inside:remainder(w)
  local is_real = rows:lt(heights):logical_and(columns:lt(widths))
  local function kept(t) return t:masked_fill(is_real:logical_not(), 0) end
  return kept(rows), kept(columns), kept(rows * widths + columns), is_real
end

--- Returns a function of the numbers of features in their images and of splice_varied's `fact`: the
--- slots of these features.
local function places_of(w)
  return function(j, fact)
    if w == 1 then return { { j } } end
    local width, across = fact(0), fact(1)
    local row, column = floor_div(j, width), j:remainder(width)
    local window = floor_div(row, w) * across + floor_div(column, w)
    return { { window * (w * w) + row:remainder(w) * w + column:remainder(w) } }
  end
end

--- Completes a table of pixel_values and image_grid_thw: pixel_values are [n, P, ...], and `layout`
--- has tensors on the CPU,
---   patches [n, S * m * m]: the number of the patch in each place of the tower
---   rows, columns [n, S * m * m]: where in its image this patch is
---   heights, widths [n, 1]: of the images, in features
---   is_real [n, S * m * m]: which places have patches, or nil if all have
--- and is_ordered, whether the patches are in their order in pixel_values. `spliced` has `counts`,
--- `facts` and `places` of splice_varied.lua. `m` is the number of rows and columns of patches that
--- a feature stands for, `w` those of features that a window has.
function grids.complete(model_type, images, m, w)
  local pixels, grid = images.pixel_values, images.image_grid_thw
  check_shapes(model_type, pixels, grid)
  local given = values_of(pixels, grid, m)
  if not is_planned(grid) then check(model_type, pixels, given, m) end
  if pixels:dim() == 2 then images.pixel_values = by_image(pixels, given) end
  local sides = floor_div(given:narrow(1, 1, 2), m)
  local heights, widths = sides:narrow(1, 0, 1), sides:narrow(1, 1, 1)
  local across = floor_div(widths + (w - 1), w):clamp(1)
  local rows, columns, numbers, is_real = slots_of(heights, widths, across, w)
  local inside = torch.arange(m * m)
  local function patches_of(slots, more) return (slots:unsqueeze(-1) + more):flatten(1) end
  local is_whole = is_real:all():item()
  images.layout = {
    is_ordered = w == 1,
    patches = patches_of(numbers * (m * m), inside),
    rows = patches_of(rows * m, floor_div(inside, m)),
    columns = patches_of(columns * m, inside:remainder(m)),
    heights = heights, widths = widths,
    is_real = not is_whole and is_real:repeat_interleave(m * m, 1) or nil,
  }
  local device = pixels.device
  images.spliced = {
    counts = (heights * widths):flatten():to(device),
    facts = torch.cat({ widths:clamp(1), across }, 1):to(device),
    places = places_of(w),
  }
end

return grids
