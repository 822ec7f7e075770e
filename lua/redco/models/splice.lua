--- Features of images in rows of tokens. Shapes: B rows, T tokens, n images of F features each.
local fail = require "redco.fail"
local torch = require "redco.torch"

local splice = {}

-- Whether each row has as many image tokens as images times their features. The layout is found
-- with tensors without values.
local function is_even(is_image, features)
  local n, length = features:size(0), features:size(1)
  local per_row = n * length / is_image:size(0)
  if n % is_image:size(0) ~= 0 then return false end
  return is_image:to_local().device == "meta" or is_image:sum { 1 }:eq(per_row):all():item()
end

--- Returns embeddings x [B, T, size] with features [n, F, size] in place of the tokens where
--- is_image [B, T] is true, in their order. If the images are spread evenly, each process needs
--- only those of its rows.
function splice.features(model_type, x, is_image, features)
  local n, length, size = unpack(features.shape)
  features = features:to(x.dtype)
  local places
  if is_even(is_image, features) then
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
