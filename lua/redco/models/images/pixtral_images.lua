--- Images of Pixtral's model in the rows of a decoder: the patches of an image, or squares of
--- spatial_merge_size patches on a side, stand in its rows. image_sizes [n, 2] are heights and
--- widths in pixels.
local splice = require "redco.models.images.splice_varied"
local torch = require "redco.torch"

local images_of_pixtral = {}

-- Returns how many pixels a square has on a side.
local function side_of(c) return c.vision_config.patch_size * (c.spatial_merge_size or 1) end

-- Returns the heights and widths [n, 2] of images in squares; images without sizes fill
-- pixel_values.
local function sizes_of(images, side)
  local pixels, sizes = images.pixel_values, images.image_sizes
  if not sizes then
    sizes = torch.tensor({ { pixels:size(2), pixels:size(3) } }, { device = pixels.device })
      :expand { pixels:size(0), 2 }
  end
  return sizes:div(side, { rounding_mode = "floor" })
end

--- Returns the options of the image processor.
function images_of_pixtral.options(c)
  local side = side_of(c)
  return { patch_size = { height = side, width = side } }
end

--- Returns the word for an image in texts, and function(info): what stands for it.
function images_of_pixtral.text(c, token_of)
  local word, side = token_of(c.image_token_index), side_of(c)
  return word, function(info)
    local rows, columns = math.floor(info.image_sizes[1] / side),
      math.floor(info.image_sizes[2] / side)
    local row = word:rep(columns)
    return (row .. "[IMG_BREAK]"):rep(rows - 1) .. row .. "[IMG_END]"
  end
end

--- Returns the function that puts features in the place of image tokens (features_in_text.lua).
function images_of_pixtral.new_splice(c)
  local side = side_of(c)
  return function(_, x, is_image, features, images)
    local sizes = sizes_of(images, side)
    local n_columns = math.floor(images.pixel_values:size(3) / side)
    return splice(c.model_type, x, is_image, features, {
      counts = sizes:prod(1), facts = sizes, has_rows = images.n_real ~= nil,
      places = function(j, fact)
        local width = fact(1):clamp(1)
        local row = j:div(width, { rounding_mode = "floor" })
        return { { row * n_columns + j - row * width } }
      end,
    })
  end
end

return images_of_pixtral
