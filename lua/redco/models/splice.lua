--- Features of images in rows of tokens. Shapes: B rows, T tokens, n images of F features each.
local fail = require "redco.fail"
local torch = require "redco.torch"

local splice = {}

local function is_planned(t) return t:to_local().device == "meta" end

-- Whether each row has as many image tokens as images times their features. The layout is found
-- with tensors without values.
local function is_even(is_image, features)
  local n, length = features:size(0), features:size(1)
  local per_row = n * length / is_image:size(0)
  if n % is_image:size(0) ~= 0 then return false end
  return is_planned(is_image) or is_image:sum { 1 }:eq(per_row):all():item()
end

local function check_rows(model_type, is_image, n_real, length)
  if is_planned(is_image) then return end
  local counts = is_image:sum { 1 }
  if counts:eq(n_real * length):all():item() then return end
  counts, n_real = counts:full():tolist(), n_real:full():tolist()
  for i, count in ipairs(counts) do
    if count ~= n_real[i] * length then
      fail("%s: row %d of input_ids has %d image tokens, expected %d: %d images of %d features "
        .. "each", model_type, i, count, n_real[i] * length, n_real[i], length)
    end
  end
end

--- Returns how many images each row has, [B]: in pixel_values [B, k, ...] those of zeros are none.
function splice.n_real(pixels) return pixels:flatten(2):ne(0):any(2):sum { 1 } end

--- Returns embeddings x [B, T, size] with features [n, F, size] in place of the tokens where
--- is_image [B, T] is true, in their order. If the images are spread evenly, or rows have their own
--- (n = B * k, and the first n_real [B] of each k count), each process needs only those of its
--- rows.
function splice.features(model_type, x, is_image, features, n_real)
  local n, length, size = unpack(features.shape)
  features = features:to(x.dtype)
  local places
  if n_real then check_rows(model_type, is_image, n_real, length) end
  if n_real or is_even(is_image, features) then
    features = features:reshape { x:size(0), n / x:size(0) * length, size }
    places = is_image:to "int64":cumsum(1):sub(1):clamp(0)
    features = features:gather(1, places:unsqueeze(-1):expand(x.shape))
  else
    local count = is_image:sum():item()
    if count ~= n * length then
      fail("%s: input_ids have %d image tokens, expected %d: %d images of %d features each",
        model_type, count, n * length, n, length)
    end
    places = is_image:reshape { -1 }:to "int64":cumsum(0):sub(1):clamp(0):view(is_image.shape)
    features = torch.embedding(features:reshape { n * length, size }, places)
  end
  return torch.where(is_image:unsqueeze(-1), features, x)
end

--- Returns the numbers [B, T] of spans of adjacent image tokens; -1 for other tokens.
function splice.spans(is_image)
  local before = torch.constant_pad_nd(is_image, { 1, 0 }, 0):narrow(1, 0, is_image:size(1))
  local starts = is_image:logical_and(before:logical_not())
  return (starts:to "int64":cumsum(1) - 1):masked_fill(is_image:logical_not(), -1)
end

return splice
