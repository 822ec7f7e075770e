--- Features of images in rows of tokens. Shapes: B rows, T tokens, n images of F features each.
local put = require "redco.models.images.splice_varied"
local torch = require "redco.torch"

local splice = {}

--- Returns how many images each row has, [B]: in pixel_values [B, k, ...] those of zeros are none.
function splice.n_real(pixels) return pixels:flatten(2):ne(0):any(2):sum { 1 } end

--- Returns embeddings x [B, T, size] with features [n, F, size] in place of the tokens where
--- is_image [B, T] is true, in their order. If rows have their own images (n = B * k), the first
--- n_real [B] of each k count. `unit` is "image" or "sound".
function splice.features(model_type, x, is_image, features, n_real, unit)
  local n, length, options = features:size(0), features:size(1), { device = x.device }
  local counts = n_real and torch.arange(n / x:size(0), options):lt(n_real:unsqueeze(1)):flatten()
    or torch.ones({ n }, options)
  return put(model_type, x, is_image, features, { counts = counts:to "int64" * length,
    has_rows = n_real ~= nil, unit = unit })
end

--- Returns the numbers [B, T] of spans of adjacent image tokens; -1 for other tokens.
function splice.spans(is_image)
  local before = torch.constant_pad_nd(is_image, { 1, 0 }, 0):narrow(1, 0, is_image:size(1))
  local starts = is_image:logical_and(before:logical_not())
  return (starts:to "int64":cumsum(1) - 1):masked_fill(is_image:logical_not(), -1)
end

return splice
