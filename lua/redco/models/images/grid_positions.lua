--- Positions of time, row and column: a token of text has the same three, the features of an image
--- those of their places in it, counted from where the image begins. Behind an image positions go
--- on as far as its longer side. Shapes: B rows, T new tokens, n images of at most F features.
local blocks = require "redco.models.layers.blocks"
local splice = require "redco.models.images.splice_varied"
local torch = require "redco.torch"

local positions = {}

-- In the cache under this name: how far the positions of each row are ahead of its tokens, [B, 1].
local name = "grid_positions"

--- Returns position_ids [B or 1, T], or nil for the usual ones, of tokens behind those of images.
function positions.of_text(inputs, o, ids)
  local ahead = o.cache and o.cache:state(name)
  return ahead and blocks.position_ids({ attention_mask = inputs.attention_mask }, o, ids) + ahead
end

-- Returns [n, F, 3]: row and column of each feature, and the step from it to the next position,
-- minus the step 1 of a token of text.
local function of_features(heights, widths)
  local counts = heights * widths
  local numbers = torch.arange(math.max(1, counts:max():item())):unsqueeze(0)
  local width = widths:clamp(1)
  local is_last = numbers:eq(counts - 1):to "int64"
  return torch.stack({ numbers:div(width, { rounding_mode = "floor" }), numbers:remainder(width),
    is_last * torch.maximum(heights, widths) - 1 }, -1)
end

local function in_order(j) return { { j } } end

--- Returns axis_position_ids [B, T, 3]. `images` is that of patch_grids.lua.
function positions.of_images(model_type, inputs, o, is_image, images)
  local usual = positions.of_text(inputs, o, is_image)
    or blocks.position_ids({ attention_mask = inputs.attention_mask }, o, is_image)
  local layout, device = images.layout, is_image.device
  local none = torch.zeros_like(is_image, { dtype = "int64" }):unsqueeze(-1):expand {
    is_image:size(0), is_image:size(1), 3 }
  local rows, columns, steps = unpack(splice(model_type, none, is_image,
    of_features(layout.heights, layout.widths):to(device),
    setmetatable({ places = in_order }, { __index = images.spliced })):unbind(-1))
  local sums = steps:cumsum(1)
  if o.cache then
    local ahead, sum = o.cache:state(name), sums:narrow(1, sums:size(1) - 1, 1)
    o.cache:keep(name, ahead and ahead + sum or sum)
  end
  local first = usual + sums - steps
  return torch.stack({ first, first + rows, first + columns }, -1)
end

return positions
