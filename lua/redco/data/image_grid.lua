--- Images to look at: grids of a batch, and PNG files.
local arguments = require "redco.arguments"
local fail = require "redco.fail"
local native = require "redco.native"
local registry = require "redco.registry"
local torch = require "redco.torch"

local grids = {}

local function described(value)
  return torch.is_tensor(value)
    and ("%s [%s]"):format(value.dtype, table.concat(value.shape, ", ")) or "a " .. type(value)
end

-- Returns images [batch, 3, height, width].
local function in_colour(where, images, n_dims)
  if not torch.is_tensor(images) or images:dim() ~= n_dims
    or images:size(-3) ~= 3 and images:size(-3) ~= 1
    or images.dtype ~= "uint8" and not images.dtype:find "float" then
    fail("%s: expected uint8 or floating-point images [%s1 or 3, height, width], got %s", where,
      n_dims == 4 and "batch, " or "", described(images))
  end
  return images:size(-3) == 3 and images or images:repeat_interleave(3, -3)
end

local options = arguments("make_grid", { nrow = 8, padding = 2, pad_value = 0 })
grids.make_grid = registry.define("redco.data.make_grid", [[
make_grid(images [batch, channels, height, width], {nrow = 8, padding: integer = 2, pad_value = 0}) -> [3, rows, columns]
Puts the images of a batch beside each other, `nrow` in each row, with `padding` pixels of pad_value
around each: torchvision.utils.make_grid. `save_image` writes the result.]],
function(images, given)
  local o = options(given)
  images = in_colour("data.make_grid", images, 4)
  local n, height, width = images:size(0), images:size(2) + o.padding, images:size(3) + o.padding
  if n == 0 then fail "data.make_grid: the batch has no images" end
  if type(o.nrow) ~= "number" or o.nrow < 1 or o.nrow % 1 ~= 0 or o.padding < 0
    or o.padding % 1 ~= 0 then
    fail("data.make_grid: nrow and padding: expected integers, got %s and %s", tostring(o.nrow),
      tostring(o.padding))
  end
  local columns = math.min(o.nrow, n)
  local rows = math.ceil(n / columns)
  local grid = torch.full({ 3, height * rows + o.padding, width * columns + o.padding },
    o.pad_value, { dtype = images.dtype, device = images.device })
  for i = 0, n - 1 do
    local x, y = i % columns, math.floor(i / columns)
    grid:narrow(1, y * height + o.padding, images:size(2))
      :narrow(2, x * width + o.padding, images:size(3)):copy_(images[i])
  end
  return grid
end)

grids.save_image = registry.define("redco.data.save_image", [[
save_image(image [channels, height, width], path)
Writes an image as a PNG file: uint8 pixels, or floating-point values from 0 to 1, to which others
are clamped. One channel gives a grey image.]], function(image, path)
  image = in_colour("data.save_image", image, 3):detach():cpu()
  if type(path) ~= "string" then
    fail("data.save_image: path: expected a string, got a %s", type(path))
  end
  if image.dtype ~= "uint8" then
    if image:isnan():any():item() then fail "data.save_image: the image has NaN" end
    image = (image:float() * 255 + 0.5):clamp(0, 255):to "uint8"
  end
  local bytes = native.png_encode(path, image:contiguous())
  local file, message = io.open(path, "wb")
  if not file then fail("data.save_image: cannot write %s", message) end
  local written, reason = file:write(bytes)
  local closed, late = file:close()
  if not (written and closed) then fail("data.save_image: %s: %s", path, reason or late) end
end)

return grids
