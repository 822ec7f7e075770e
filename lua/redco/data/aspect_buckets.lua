--- Pictures of different sizes in batches of one size each: buckets by their ratio of width to
--- height.
local arguments = require "redco.arguments"
local check_choice = require "redco.check_choice"
local check_integer = require "redco.check_integer"
local dataset = require "redco.data.dataset"
local fail = require "redco.fail"
local native = require "redco.native"
local registry = require "redco.registry"
local torch = require "redco.torch"

local buckets = {}

local shapes = arguments("data.aspect_buckets", { divisor = 64, max_ratio = 2 })
buckets.aspect_buckets = registry.define("redco.data.aspect_buckets", [[
aspect_buckets(resolution: integer, {divisor: integer = 64, max_ratio: number = 2}) -> list
Returns sizes {width, height} of pictures with about the same number of pixels, at most
resolution x resolution, for `redco.data.bucket_sampler`. Width and height are multiples of
`divisor`, and neither is more than max_ratio times the other. The list is sorted by width.]],
function(resolution, options)
  local where, o = "data.aspect_buckets", shapes(options)
  check_integer(where, "divisor", o.divisor, 1)
  check_integer(where, "resolution", resolution, o.divisor)
  if type(o.max_ratio) ~= "number" or o.max_ratio < 1 or o.max_ratio ~= o.max_ratio then
    fail("%s: max_ratio: expected a number of at least 1, got %s", where,
      native.describe(o.max_ratio))
  end
  local wide, tall = {}, {}
  for short = o.divisor, resolution, o.divisor do
    local long = math.floor(resolution * resolution / short / o.divisor) * o.divisor
    if long <= o.max_ratio * short then
      tall[#tall + 1] = { short, long }
      if long > short then table.insert(wide, 1, { long, short }) end
    end
  end
  for _, size in ipairs(wide) do tall[#tall + 1] = size end
  return tall
end)

-- The number of the bucket with the nearest ratio of width to height.
local function nearest(sizes, width, height)
  local best, least
  for i, size in ipairs(sizes) do
    local off = math.abs(math.log(width / height * size[2] / size[1]))
    if not least or off < least then best, least = i, off end
  end
  return best
end

-- Returns for each bucket the numbers of its examples.
local function assigned(where, examples, sizes, given)
  local members = {}
  for i = 1, #sizes do members[i] = {} end
  if given and #given ~= #examples then
    fail("%s: sizes: expected %d pairs {width, height}, one for each example, got %d", where,
      #examples, #given)
  end
  for i = 1, #examples do
    local size = given and given[i]
    if not size then
      local image = examples[i].image
      if not torch.is_tensor(image) or image:dim() ~= 3 then
        fail("%s: example %d: image: expected a picture [channels, height, width], got %s", where,
          i, native.describe(image))
      end
      size = { image:size(2), image:size(1) }
    end
    local own = members[nearest(sizes, size[1], size[2])]
    own[#own + 1] = i
  end
  return members
end

-- Resizes a picture so that it covers the bucket, and crops it to the bucket's size. `place` is the
-- position of the crop, from 0 to 1, from the top and from the left.
local function fitted(example, size, place, resample)
  local image, width, height = example.image, size[1], size[2]
  local own_height, own_width = image:size(1), image:size(2)
  local scale = math.max(width / own_width, height / own_height)
  local scaled_height = math.max(height, math.floor(own_height * scale + 0.5))
  local scaled_width = math.max(width, math.floor(own_width * scale + 0.5))
  image = native.image_resize(image:cpu(), scaled_height, scaled_width, resample)
  local top = math.min(math.floor(place[1] * (scaled_height - height + 1)), scaled_height - height)
  local left = math.min(math.floor(place[2] * (scaled_width - width + 1)), scaled_width - width)
  local result = {}
  for key, value in pairs(example) do result[key] = value end
  result.image = image:narrow(1, top, height):narrow(2, left, width):contiguous()
  result.time_ids = torch.tensor({ own_height, own_width, top, left, height, width },
    { dtype = "float32" })
  return result
end

-- Returns the batches of an epoch: a list of {bucket, numbers of the examples}.
local function batches_of(members, size, fills, rng)
  local batches = {}
  for bucket, own in ipairs(members) do
    local n = #own
    local count = fills and math.ceil(n / size) or math.floor(n / size)
    local order = n > 0 and torch.randperm(n, { generator = rng:fold_in(bucket) }):tolist()
    for batch = 0, count - 1 do
      local rows = {}
      for row = 1, size do rows[row] = own[order[(batch * size + row - 1) % n + 1] + 1] end
      batches[#batches + 1] = { bucket, rows }
    end
  end
  local order, shuffled = torch.randperm(#batches, { generator = rng:fold_in(0) }):tolist(), {}
  for i, place in ipairs(order) do shuffled[i] = batches[place + 1] end
  return shuffled
end

-- Where a picture is cut, by the option `crop`.
local places = {
  center = function() return { 0.5, 0.5 } end,
  random = function(rng)
    return torch.rand({ 2 }, { generator = rng, dtype = "float64" }):tolist()
  end,
}

local sampled = arguments("data.bucket_sampler",
  { seed = 0, crop = "center", incomplete = "fill", resample = 2 },
  { "buckets", "batch_size", "sizes" })
buckets.bucket_sampler = registry.define("redco.data.bucket_sampler", [[
bucket_sampler(examples, {buckets: list, batch_size: integer, sizes: list = nil, seed = 0,
  crop: string = "center", incomplete: string = "fill", resample: integer = 2}) -> function(epoch_idx) -> Dataset
Returns a function to be used as train_examples of `Trainer:fit` with shuffle = false and batch_size
as global_batch_size: each batch of an epoch has pictures of one size. A picture goes to the bucket
with the nearest ratio of width to height, is resized so that it covers the bucket, and cropped. The
order of an epoch depends on the seed and the epoch only, so the batches are the same for any number
of processes.

An example has what that of `examples` has, `image` in its new size, and time_ids [6], Stable
Diffusion XL's original height and width, top and left of the crop, and height and width, which
`Pipeline.loss` takes as batch.time_ids.
  examples: tables with an image, uint8 [3, height, width], as of `redco.data.image_folder`
  buckets: sizes {width, height}, as of `redco.data.aspect_buckets`
  sizes: {width, height} of each example; without them all images are read once
  crop: "center" or "random"
  incomplete: "fill" completes the last batch of a bucket with examples of the bucket that the epoch
    has already, so that no example is left out; "drop" leaves that batch out
  resample: 1 (Lanczos), 2 (bilinear) or 3 (bicubic)]], function(examples, options)
  local where, o = "data.bucket_sampler", sampled(options)
  if type(examples) ~= "table" and type(examples) ~= "userdata" or #examples == 0 then
    fail("%s: expected a list or a data set with examples, got %s", where,
      native.describe(examples))
  end
  if type(o.buckets) ~= "table" or #o.buckets == 0 then
    fail("%s: buckets: expected a list of {width, height}, got %s", where,
      native.describe(o.buckets))
  end
  for i, size in ipairs(o.buckets) do
    for j = 1, 2 do
      check_integer(where, ("buckets: %s %d"):format(j == 1 and "width" or "height", i),
        type(size) == "table" and size[j], 1)
    end
  end
  check_integer(where, "batch_size", o.batch_size, 1)
  if o.resample ~= 1 and o.resample ~= 2 and o.resample ~= 3 then
    fail("%s: resample: expected 1 (Lanczos), 2 (bilinear) or 3 (bicubic), got %s", where,
      native.describe(o.resample))
  end
  local place_of = places[o.crop]
    or fail("%s: crop: expected \"center\" or \"random\", got %s", where, native.describe(o.crop))
  check_choice(where, "incomplete", o.incomplete, "fill", "drop")
  local members, size = assigned(where, examples, o.buckets, o.sizes), o.batch_size
  if o.incomplete == "drop" then
    local most = 0
    for _, own in ipairs(members) do most = math.max(most, #own) end
    if most < size then
      fail("%s: batch_size is %d, and no bucket has more than %d examples: take smaller batches, "
        .. "fewer buckets, or incomplete = \"fill\"", where, size, most)
    end
  end
  return function(epoch_idx)
    -- A new one for each example, because a Generator cannot be copied to workers.
    local function rng() return native.Rng(o.seed):fold_in(epoch_idx or 0) end
    local batches = batches_of(members, size, o.incomplete == "fill", rng())
    return dataset.new(#batches * size, function(i)
      local batch = batches[math.floor((i - 1) / size) + 1]
      return fitted(examples[batch[2][(i - 1) % size + 1]], o.buckets[batch[1]],
        place_of(rng():fold_in(#members + 1):fold_in(i)), o.resample)
    end)
  end
end)

return buckets
