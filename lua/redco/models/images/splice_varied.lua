--- Features of images or sounds that fill different numbers of tokens. Shapes: B rows, T tokens, n
--- images with a table of L features each.
local fail = require "redco.fail"
local torch = require "redco.torch"

-- Returns the number of groups of images and of tokens: one for each row if rows have their own
-- images, else one in all. The search for a layout has tensors without values.
local function n_groups(model_type, is_image, images)
  local counts, unit = images.counts, images.unit or "image"
  local n_rows, n = is_image:size(0), counts:size(0)
  local is_planned = is_image:to_local().device == "meta"
  if n % n_rows == 0 then
    if is_planned then return n_rows end
    local expected, found = counts:view { n_rows, n / n_rows }:sum { 1 }, is_image:sum { 1 }
    if expected:eq(found):all():item() then return n_rows end
    if images.has_rows then
      expected, found = expected:full():tolist(), found:full():tolist()
      for i, count in ipairs(found) do
        if count ~= expected[i] then
          fail("%s: row %d of input_ids has %d %s tokens, expected %d for its %ss", model_type, i,
            count, unit, expected[i], unit)
        end
      end
    end
  end
  if is_planned then return 1 end
  local expected, found = counts:sum():item(), is_image:sum():item()
  if expected ~= found then
    fail("%s: input_ids have %d %s tokens, expected %d for %d %ss", model_type, found, unit,
      expected, n, unit)
  end
  return 1
end

--- Returns embeddings x [B, T, size] with features [n, L, size] in place of the tokens where
--- is_image [B, T] is true. Image i fills counts[i] tokens, in their order. `places(j, fact)` says
--- which features token j of an image gets, as a list of { places in the table, weights or nil } of
--- which the sum counts, without it the feature j; fact(k) is facts[i, k], a whole number of
--- [n, K], of the image of each token. If rows have their own images (n = B * k), `has_rows` is
--- true, and those that a row lacks have counts of 0. `unit` is "sound" where images are sounds.
return function(model_type, x, is_image, features, images)
  local counts, facts = images.counts, images.facts
  local groups = n_groups(model_type, is_image, images)
  local n, length, size = unpack(features.shape)
  local per_group = n / groups
  local rank = is_image:reshape { groups, -1 }:to "int64":cumsum(1):sub(1):clamp(0)
  counts = counts:view { groups, per_group }
  local ends = counts:cumsum(1)
  local image = rank:unsqueeze(-1):ge(ends:unsqueeze(1)):to "int64":sum { -1 }
    :clamp(0, per_group - 1)
  local j = rank - (ends - counts):gather(1, image)
  local function fact(k) return facts:select(1, k):view { groups, per_group }:gather(1, image) end

  features = features:to(x.dtype):reshape { groups, per_group * length, size }
  local sum
  for _, part in ipairs(images.places and images.places(j, fact) or { { j } }) do
    local places = (image * length + part[1]:clamp(0, length - 1)):unsqueeze(-1)
    local found = features:gather(1, places:expand { groups, rank:size(1), size })
    if part[2] then found = found * part[2]:to(x.dtype):unsqueeze(-1) end
    sum = sum and sum + found or found
  end
  return torch.where(is_image:unsqueeze(-1), sum:view(x.shape), x)
end
