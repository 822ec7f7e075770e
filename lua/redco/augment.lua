--- Random changes of batches of images, drawn from the generator that loss_fn receives.
local arguments = require "redco.arguments"
local fail = require "redco.fail"
local registry = require "redco.registry"
local strict = require "redco.strict"
local torch = require "redco.torch"

local augment = {}

local function define(name, text, f)
  augment[name] = registry.define("redco.augment." .. name, text, f)
end

local function check(where, images, o)
  if not torch.is_tensor(images) or images:dim() ~= 4 or not images.dtype:find "float" then
    fail("%s: expected floating-point images [batch, channels, height, width], got %s", where,
      torch.is_tensor(images) and ("%s [%s]"):format(images.dtype,
        table.concat(images.shape, ", ")) or "a " .. type(images))
  end
  if not o.rng then fail("%s: it needs rng, the Generator that loss_fn is given", where) end
end

local function check_range(where, name, value, low, high)
  if type(value) ~= "number" or not (value >= low and value <= high) then
    fail("%s: %s: expected a number from %g to %g, got %s", where, name, low, high,
      value)
  end
end

-- Returns one number from [0, 1) for each example. Makes the tensor from the images, so that it is
-- split over the processes like them.
local function numbers(images, rng, dtype)
  local first = images:detach():select(1, 0):select(1, 0):select(1, 0)
  dtype = dtype or images.dtype == "float64" and "float64" or "float32"
  return torch.empty_like(first, { dtype = dtype }):uniform_(0, 1, { generator = rng })
end

-- Per-example numbers as factors of images.
local function as_factors(values, images) return values:view { -1, 1, 1, 1 }:to(images.dtype) end

local crop = arguments("augment.random_crop", { padding = 0 }, { "size", "rng" })

-- Selects `size` rows (dimension 2) or columns (dimension 3) from one starting place per example.
local function cut(images, dim, size, rng)
  local room = images:size(dim) - size
  local first = (numbers(images, rng) * (room + 1)):floor():clamp(0, room):long()
  local places = first:unsqueeze(1) + torch.arange(size, { device = images.device })
  local shape = images.shape
  local index = dim == 2 and places:view { -1, 1, size, 1 } or places:view { -1, 1, 1, size }
  return images:gather(dim, index:expand(shape[1], shape[2], dim == 2 and size or shape[3],
    dim == 3 and size or shape[4]))
end

define("random_crop", [[
random_crop(images [batch, channels, height, width], {size: integer or list of integers = nil, padding: integer = 0, rng}) -> Tensor [batch, channels, size...]
Pads images with `padding` zeros on each side and cuts a window of `size`, by default that of the
images, from a random place of each example.]], function(images, options)
  local o = crop(options)
  local where = "augment.random_crop"
  check(where, images, o)
  check_range(where, "padding", o.padding, 0, 2 ^ 20)
  local size = o.size or { images:size(2), images:size(3) }
  if type(size) == "number" then size = { size, size } end
  if o.padding > 0 then
    images = torch.constant_pad_nd(images, { o.padding, o.padding, o.padding, o.padding }, 0)
  end
  for i = 1, 2 do check_range(where, "size", size[i], 1, images:size(i + 1)) end
  return cut(cut(images, 2, size[1], o.rng), 3, size[2], o.rng)
end)

local flip = arguments("augment.random_horizontal_flip", { p = 0.5 }, { "rng" })
define("random_horizontal_flip", [[
random_horizontal_flip(images [batch, channels, height, width], {p = 0.5, rng}) -> like images
Mirrors each example, left to right, with probability p.]], function(images, options)
  local o = flip(options)
  check("augment.random_horizontal_flip", images, o)
  check_range("augment.random_horizontal_flip", "p", o.p, 0, 1)
  return torch.where(numbers(images, o.rng):lt(o.p):view { -1, 1, 1, 1 }, images:flip { 3 },
    images)
end)

local function grey(images)
  local red, green, blue = unpack(images:unbind(1))
  return (0.299 * red + 0.587 * green + 0.114 * blue):unsqueeze(1)
end

-- The images that a factor of 0 gives.
local bases = {
  brightness = function(images) return torch.zeros_like(images) end,
  contrast = function(images) return grey(images):mean({ 1, 2, 3 }, true) end,
  saturation = grey,
}

local jitter = arguments("augment.color_jitter", { brightness = 0, contrast = 0, saturation = 0 },
  { "rng" })
define("color_jitter", [[
color_jitter(images [batch, 3, height, width], {brightness = 0, contrast = 0, saturation = 0, rng}) -> like images
Changes the brightness, then the contrast, then the saturation of each example by factors from
[max(0, 1 - b), 1 + b], with b the argument of that name. The images have values from 0 to 1, to
which the results are clamped.]], function(images, options)
  local o = jitter(options)
  local where = "augment.color_jitter"
  check(where, images, o)
  if images:size(1) ~= 3 then
    fail("%s: expected images of 3 channels, got %d", where, images:size(1))
  end
  for _, name in ipairs { "brightness", "contrast", "saturation" } do
    check_range(where, name, o[name], 0, math.huge)
    if o[name] > 0 then
      local low = math.max(0, 1 - o[name])
      local factor = as_factors(numbers(images, o.rng) * (1 + o[name] - low) + low, images)
      images = (factor * images + (1 - factor) * bases[name](images)):clamp(0, 1)
    end
  end
  return images
end)

local resized = arguments("augment.random_resized_crop",
  { scale = { 0.08, 1 }, ratio = { 3 / 4, 4 / 3 } }, { "rng" })
define("random_resized_crop", [[
random_resized_crop(images [batch, channels, height, width], size: integer or list of integers, {scale: list of numbers = {0.08, 1}, ratio = {0.75, 1.33}, rng}) -> [batch, channels, size...]
Cuts a random window of each example and resizes it to `size`, bilinearly without antialiasing. The
window has a fraction from `scale` of the area, and a ratio of width to height from `ratio`, as far
as it fits.]], function(images, size, options)
  local o = resized(options)
  local where = "augment.random_resized_crop"
  check(where, images, o)
  if type(size) == "number" then size = { size, size } end
  for i = 1, 2 do
    check_range(where, "size", type(size) == "table" and size[i], 1, 2 ^ 20)
    check_range(where, "scale", o.scale[i], i == 1 and 1e-9 or o.scale[1], 1)
    check_range(where, "ratio", o.ratio[i], i == 1 and 1e-9 or o.ratio[1], 1e9)
  end
  local function between(low, high) return numbers(images, o.rng) * (high - low) + low end
  local aspect = images:size(2) / images:size(3)
  local area = between(o.scale[1], o.scale[2])
  local ratio = between(math.log(o.ratio[1]), math.log(o.ratio[2])):exp()
  -- As fractions of the width and the height.
  local width = (area * ratio * aspect):sqrt():clamp(0, 1)
  local height = (area / ratio / aspect):sqrt():clamp(0, 1)
  -- The positions of the output's pixels in grid_sampler's coordinates, -1 to 1.
  local function positions(extent, n)
    local start = numbers(images, o.rng) * (1 - extent)
    local inside = (torch.arange(n, { device = images.device, dtype = extent.dtype }) + 0.5) / n
    return (start:unsqueeze(1) + extent:unsqueeze(1) * inside) * 2 - 1
  end
  local x, y = positions(width, size[2]), positions(height, size[1])
  local shape = { images:size(0), size[1], size[2] }
  local grid = torch.stack({ x:unsqueeze(1):expand(shape), y:unsqueeze(2):expand(shape) }, -1)
  return torch.grid_sampler(images, grid:to(images.dtype), 0, 1, false)
end)

-- The logarithms of numbers drawn from Gamma(alpha), by inverting the distribution function.
local function log_gamma_draws(images, alpha, rng)
  local target = numbers(images, rng, "float64")
  local low, high = torch.full_like(target, -800), torch.full_like(target, math.log(alpha + 60))
  local shape = torch.full_like(target, alpha)
  for _ = 1, 52 do
    local middle = (low + high) / 2
    local is_below = torch.igamma(shape, middle:exp()):lt(target)
    low, high = torch.where(is_below, middle, low), torch.where(is_below, high, middle)
  end
  return low
end

local mix = arguments("augment.mixup", { alpha = 1 }, { "num_classes", "rng" })
define("mixup", [[
mixup(images [batch, channels, height, width], targets [batch, ...], {alpha = 1, num_classes = nil, rng}) -> like images, Tensor [batch, ...]
Mixes each example with its predecessor in the batch: lambda * example + (1 - lambda) * other, with
lambda from the distribution Beta(alpha, alpha), and the targets alike (Zhang et al., 2018). The
targets are floating-point numbers, such as probabilities of classes; integer classes need
num_classes, and become probabilities [batch, num_classes]. On several processes the images are
gathered for it.]], function(images, targets, options)
  local o = mix(options)
  local where = "augment.mixup"
  check(where, images, o)
  if type(o.alpha) ~= "number" or not (o.alpha >= 0.01 and o.alpha <= 1000) then
    fail("%s: alpha: expected a number from 0.01 to 1000, got %s", where, o.alpha)
  end
  if not torch.is_tensor(targets) or targets:dim() == 0 or targets:size(0) ~= images:size(0) then
    fail("%s: expected targets [%d, ...] as there are images, got %s", where, images:size(0),
      torch.is_tensor(targets) and "[" .. table.concat(targets.shape, ", ") .. "]"
        or "a " .. type(targets))
  end
  if not targets.dtype:find "float" then
    if not o.num_classes then
      fail("%s: targets of %s are classes: give num_classes", where, targets.dtype)
    end
    local classes = torch.arange(o.num_classes, { device = targets.device })
    targets = targets:unsqueeze(-1):eq(classes):to(images.dtype)
  end
  local lambda = (log_gamma_draws(images, o.alpha, o.rng)
    - log_gamma_draws(images, o.alpha, o.rng)):sigmoid()
  local function mixed(values)
    local shape = { -1 }
    for i = 2, values:dim() do shape[i] = 1 end
    local own = lambda:view(shape):to(values.dtype)
    return own * values + (1 - own) * values:roll({ 1 }, { 0 })
  end
  return mixed(images), mixed(targets)
end)

return registry.define("redco.augment", [[
redco.augment
Random changes of batches of images, to be called in loss_fn in training. Each example has random
numbers that depend only on the seed, the step and its place in the global batch: neither processes
nor micro-batches change them.]], strict("redco.augment", augment))
