--- Images as LLaVA-NeXT reads them: the whole image small, then a grid of tiles, of which the
--- features that show no padding count, with a learned feature at the end of each row.
---
--- pixel_values are [n, tiles, 3, height, width], and image_sizes [n, 2] the heights and widths of
--- the images themselves, or zeros.
local best_resolution = require "redco.data.image_tiles".best_resolution
local blocks = require "redco.models.layers.blocks"
local fail = require "redco.fail"
local splice = require "redco.models.images.splice_varied"
local torch = require "redco.torch"

local grids = {}

-- Python's int(round(x, 7)).
local function whole(x) return math.floor(x + 5e-8) end

-- Returns how many of `size` features are no padding, and how much padding is before them.
local function without_padding(size, real)
  local padding = math.floor((size - whole(real)) / 2)
  return size - 2 * padding, padding
end

--- Returns facts of an image of this height and width, and how many tokens it has. The facts are,
--- of its features in the grid of tiles, how many rows and columns count, how many rows are above
--- and columns left of these; to how many rows and columns they are scaled; how many tiles are
--- across. `most` is the number of tiles of which the features are not scaled, or nil for any.
function grids.facts(c, height, width, most, is_single)
  local vision = c.vision_config
  local side = math.floor(vision.image_size / vision.patch_size)
  if height == 0 then return { 0, 0, 0, 0, 0, 0, 1 }, 0 end
  if is_single == false then return { 0, 0, 0, 0, 0, 0, 1 }, side ^ 2 + 1 end
  local to_height, to_width = best_resolution(height, width, c.image_grid_pinpoints)
  local down, across = math.floor(to_height / vision.image_size),
    math.floor(to_width / vision.image_size)
  local rows, columns, top, left = down * side, across * side, 0, 0
  if width / height > columns / rows then
    rows, top = without_padding(rows, height * (columns / width))
  else
    columns, left = without_padding(columns, width * (rows / height))
  end
  local new_rows, new_columns = rows, columns
  local ratio = most and math.sqrt(rows * columns / (most * side ^ 2)) or 1
  if ratio > 1.1 then
    new_rows, new_columns = math.floor(rows / ratio), math.floor(columns / ratio)
  end
  return { rows, columns, top, left, new_rows, new_columns, across },
    side ^ 2 + new_rows * (new_columns + 1)
end

--- Raises an error unless the grids fit the tiles.
function grids.check(c)
  local size = c.vision_config.image_size
  for _, pair in ipairs(c.image_grid_pinpoints) do
    local is_pair = type(pair) == "table" and #pair == 2 and pair[1] >= size and pair[2] >= size
    if not is_pair or pair[1] % size ~= 0 or pair[2] % size ~= 0 then
      fail("%s: image_grid_pinpoints has an entry that is no pair of multiples of image_size, %d",
        c.model_type, size)
    end
  end
  if #c.image_grid_pinpoints == 0 then fail("%s: image_grid_pinpoints is empty", c.model_type) end
  local has_class = c.vision_config.model_type == "clip_vision_model"
  if has_class ~= (c.vision_feature_select_strategy == "default") then
    fail("%s: vision_feature_select_strategy is '%s', which leaves no square of features of a %s",
      c.model_type, c.vision_feature_select_strategy, c.vision_config.model_type)
  end
end

-- Returns which images are alone in their rows, as a list.
local function singles(images, n)
  local list, counts = {}, images.batch_num_images
  if not counts then return list end
  counts = counts:full():tolist()
  for _, count in ipairs(counts) do
    for _ = 1, images.n_real and n / #counts or count do list[#list + 1] = count == 1 end
  end
  return list
end

-- Returns counts [n] and facts [n, K]. The search for a layout has no values: it assumes that
-- images have the size of a tile.
local function facts_of(c, images, most)
  local sizes, n = images.image_sizes, images.pixel_values:size(0)
  if not sizes or sizes:dim() ~= 2 or sizes:size(0) ~= n or sizes:size(1) ~= 2 then
    fail("%s: inputs.image_sizes are missing or not [%d, 2], the heights and widths of the images",
      c.model_type, n)
  end
  local is_planned = sizes:to_local().device == "meta"
  local rows, are_single = {}, {}
  if is_planned then
    local size = c.vision_config.image_size
    for i = 1, n do rows[i] = { size, size } end
  else
    rows, are_single = sizes:full():tolist(), singles(images, n)
  end
  local facts, counts = {}, {}
  for i, size in ipairs(rows) do
    facts[i], counts[i] = grids.facts(c, size[1], size[2], most, are_single[i])
  end
  local options = { dtype = "int64", device = sizes.device }
  return torch.tensor(counts, options), torch.tensor(facts, options)
end

-- For scaling from `size` to `new_size` places: returns the two old places on both sides of a new
-- `place`, and the weight of the second.
local function between(place, size, new_size)
  local at = ((place + 0.5) * (size:float() / new_size) - 0.5):clamp(0)
  local first = at:floor()
  local second = torch.minimum((first + 1):to "int64", (size - 1):clamp(0))
  return first:to "int64", second, at - first
end

--- Returns the function of features_in_text.lua that puts features into rows. A table of features
--- has those of the tiles of an image, the first of the whole, and at its end that of the end of a
--- row.
function grids.new_splice(c, most)
  local vision = c.vision_config
  local side = math.floor(vision.image_size / vision.patch_size)
  local n_base = side ^ 2

  return function(params, x, is_image, features, images)
    local n_tiles, last = images.pixel_values:size(1), images.pixel_values:size(1) * n_base
    local counts, facts = facts_of(c, images, most)
    local newline = params["model.image_newline"]:to(features.dtype)
      :expand { features:size(0), 1, features:size(2) }

    local function places(j, fact)
      local rows, columns, top, left, new_rows, new_columns, across = fact(0), fact(1), fact(2),
        fact(3), fact(4), fact(5), fact(6)
      local behind, width = (j - n_base):clamp(0), new_columns + 1
      local row = behind:div(width, { rounding_mode = "floor" })
      local column = behind - row * width
      local is_base = j:lt(n_base)
      local is_newline = column:ge(new_columns):logical_and(is_base:logical_not())

      local function place(own_row, own_column)
        local y, z = own_row + top, own_column + left
        local tile = y:div(side, { rounding_mode = "floor" }) * across
          + z:div(side, { rounding_mode = "floor" }) + 1
        local found = tile:clamp(nil, n_tiles - 1) * n_base + y:remainder(side) * side
          + z:remainder(side)
        return torch.where(is_base, j, found:masked_fill(is_newline, last))
      end

      if not most then return { { place(row, column) } } end
      local rows_of = { between(row, rows, new_rows:clamp(1)) }
      local columns_of = { between(column, columns, new_columns:clamp(1)) }
      local list = {}
      for a = 1, 2 do
        for b = 1, 2 do
          local down = a == 1 and 1 - rows_of[3] or rows_of[3]
          local right = b == 1 and 1 - columns_of[3] or columns_of[3]
          list[#list + 1] = { place(rows_of[a], columns_of[b]), down * right }
        end
      end
      return list
    end

    return splice(c.model_type, x, is_image, torch.cat({ features, newline }, 1), {
      counts = counts, facts = facts, has_rows = images.n_real ~= nil, places = places })
  end
end

--- Declares the feature of the ends of rows.
function grids.add_parameters(c, add)
  add("model.image_newline", { c.text_config.hidden_size },
    blocks.normal(1 / math.sqrt(c.text_config.hidden_size)))
end

--- Returns the text in place of an image, a function of what the image processor says of it.
function grids.text(c, word, most)
  return function(info)
    local height, width = unpack(info.image_sizes)
    local _, count = grids.facts(c, height, width, most, info.is_single)
    return word:rep(count)
  end
end

return grids
