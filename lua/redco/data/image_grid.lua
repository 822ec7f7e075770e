--- Images to look at: grids of a batch, PNG and JPEG files, and images on the terminal.
local add_texts = require "redco.data.image_texts"
local arguments = require "redco.arguments"
local check_integer = require "redco.check_integer"
local fail = require "redco.fail"
local native = require "redco.native"
local registry = require "redco.registry"
local terminal_image = require "redco.data.terminal_image"
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
  check_integer("data.make_grid", "nrow", o.nrow, 1)
  check_integer("data.make_grid", "padding", o.padding, 0)
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

-- Returns an image as uint8 [3, height, width] on the CPU.
local function as_pixels(where, image)
  image = in_colour(where, image, 3):detach():cpu()
  if image.dtype ~= "uint8" then
    if image:isnan():any():item() then fail("%s: the image has NaN", where) end
    image = (image:float() * 255 + 0.5):clamp(0, 255):to "uint8"
  end
  return image:contiguous()
end

local save_options = arguments("save_image", { quality = 95 }, { "metadata" })
grids.save_image = registry.define("redco.data.save_image", [[
save_image(image [channels, height, width], path, {metadata = nil, quality: integer = 95})
Writes an image as a PNG file, or if the path ends in .jpg or .jpeg as a JPEG file of this quality
from 1 to 100: uint8 pixels, or floating-point values from 0 to 1, to which others are clamped. One
channel gives a grey image. `metadata` are texts by keyword, as {Description = "a taxi"}, which image
viewers and Pillow's `Image.text` show; a JPEG file has them as its comment, one line for each.]],
function(image, path, given)
  local o = save_options(given)
  image = as_pixels("data.save_image", image)
  if type(path) ~= "string" then
    fail("data.save_image: path: expected a string, got %s", native.describe(path))
  end
  local is_jpeg = path:lower():find "%.jpe?g$" ~= nil
  local bytes = is_jpeg and native.jpeg_encode(path, image, o.quality)
    or native.png_encode(path, image)
  if o.metadata then
    bytes = add_texts("data.save_image", bytes, o.metadata, is_jpeg and "jpeg" or "png")
  end
  local file, message = io.open(path, "wb")
  if not file then fail("data.save_image: cannot write %s", message) end
  local written, reason = file:write(bytes)
  local closed, late = file:close()
  if not (written and closed) then fail("data.save_image: %s: %s", path, reason or late) end
end)

local protocols = { kitty = true, iterm2 = true, sixel = true, blocks = true }

local show_options = arguments("show_image", { width = 64 }, { "protocol" })
grids.show_image = registry.define("redco.data.show_image", [[
show_image(image [channels, height, width], {width: integer = 64, protocol: string = nil})
Shows an image, as `save_image` takes it, on the terminal: as a picture where the terminal has kitty's
or iTerm2's protocol or sixels, else as coloured blocks, at most `width` columns wide. `protocol` is
"kitty", "iterm2", "sixel" or "blocks"; the default follows the terminal's environment variables.]],
function(image, given)
  local o = show_options(given)
  image = as_pixels("data.show_image", image)
  local protocol = o.protocol or terminal_image.protocol(os.getenv)
  if not protocols[protocol] then
    fail("data.show_image: protocol: expected 'kitty', 'iterm2', 'sixel' or 'blocks', got '%s'",
      protocol)
  end
  local png, pixels
  if protocol == "blocks" then
    local columns = math.min(o.width, image:size(2))
    local rows = math.max(1, math.floor(image:size(1) * columns / image:size(2) + 0.5))
    local small = native.image_resize(image, rows, columns, 2)
    pixels = small:permute { 1, 2, 0 }:contiguous():tolist()
  elseif protocol == "sixel" then
    pixels = image:permute { 1, 2, 0 }:contiguous():tolist()
  else
    png = native.png_encode("show_image", image)
  end
  io.write(terminal_image.text(protocol, png, pixels))
end)

return grids
