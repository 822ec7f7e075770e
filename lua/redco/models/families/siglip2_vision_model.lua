--- SigLIP 2's model of images of different sizes (Tschannen et al., 2025), as Hugging Face's
--- `Siglip2VisionModel`. An image is a row of patches, at most as many as all rows have; its
--- positions are those of a square grid, resized to its rows and columns. Shapes: B images, T
--- patches, S the side of the grid.
local blocks = require "redco.models.layers.blocks"
local fail = require "redco.fail"
local inits = require "redco.models.images.siglip_inits"
local masks = require "redco.models.layers.masks"
local new_family = require "redco.models.images.siglip_vision"
local torch = require "redco.torch"

local function side_of(c) return math.floor(math.sqrt(c.num_patches)) end

local function check_inputs(c, inputs)
  local pixels, shapes, mask = inputs.pixel_values, inputs.spatial_shapes,
    inputs.pixel_attention_mask
  for _, name in ipairs { "pixel_values", "spatial_shapes" } do
    if not inputs[name] then fail("%s: inputs.%s are missing", c.model_type, name) end
  end
  local n = c.num_channels * c.patch_size ^ 2
  if pixels:dim() ~= 3 or pixels:size(2) ~= n then
    fail("%s: pixel_values are [%s], expected the patches of images, [batch, patches, %d]",
      c.model_type, table.concat(pixels.shape, ", "), n)
  end
  local batch, length = unpack(pixels.shape)
  if table.concat(shapes.shape, ", ") ~= batch .. ", 2" then
    fail("%s: spatial_shapes are [%s], expected the rows and columns of patches of each image, "
      .. "[%d, 2]", c.model_type, table.concat(shapes.shape, ", "), batch)
  end
  if mask and table.concat(mask.shape, ", ") ~= batch .. ", " .. length then
    fail("%s: pixel_attention_mask is [%s], expected [%d, %d]", c.model_type,
      table.concat(mask.shape, ", "), batch, length)
  end
end

-- Returns the weights [B, T, S] of the grid's S places along one axis, for `places` [B, T] of an
-- image with `n` [B, 1] places. The weights are a triangle around the place, wider if n < S.
local function weights_of(places, n, side)
  local scale = side / n
  local centres = (places + 0.5) * scale - 0.5
  local grid = torch.arange(side, { dtype = places.dtype, device = places.device })
  local distances = (grid - centres:unsqueeze(-1)):abs() / scale:clamp_min(1):unsqueeze(-1)
  local weights = (1 - distances):clamp_min(0)
  return weights / weights:sum({ -1 }, true)
end

-- Returns the positions [B, T, size] of images; `shapes` [B, 2] are their rows and columns. Padding
-- gets the positions of the first patch.
local function positions_of(table_of, shapes, length, side)
  local dtype = blocks.wide_dtype(table_of)
  local rows, columns = unpack(shapes:to(dtype):unsqueeze(-1):unbind(1))
  local places = torch.arange(length, { dtype = dtype, device = shapes.device }):unsqueeze(0)
  places = torch.where(places:lt(rows * columns), places, torch.zeros_like(places))
  local row = torch.div(places, columns, { rounding_mode = "floor" })
  local vertical = weights_of(row, rows, side)
  local horizontal = weights_of(places - row * columns, columns, side)
  local weights = (vertical:unsqueeze(-1) * horizontal:unsqueeze(-2)):flatten(2)
  local grid = table_of:narrow(0, 0, side * side):to(dtype)
  return torch.matmul(weights, grid):to(table_of.dtype)
end

return new_family {
  model_type = "siglip2_vision_model",
  models = "the images' half of SigLIP 2 with images of different sizes (naflex)",
  architecture = "Siglip2VisionModel",
  inputs = { "pixel_values", "pixel_attention_mask", "spatial_shapes" },
  more = { num_patches = 256 },
  complete = function(c)
    if side_of(c) ^ 2 ~= c.num_patches then
      fail("%s: num_patches is %d, expected the square of a whole number", c.model_type,
        c.num_patches)
    end
  end,
  add_embeddings = function(c, add)
    local size, n = c.hidden_size, c.num_channels * c.patch_size ^ 2
    blocks.add_linear(add, "embeddings.patch_embedding", n, size, inits.lecun(n))
    add("embeddings.position_embedding.weight", { c.num_patches, size },
      blocks.normal(size ^ -0.5))
  end,
  embed = function(c, params, inputs)
    check_inputs(c, inputs)
    local name = "embeddings.patch_embedding"
    local pixels = inputs.pixel_values:to(params[name .. ".weight"].dtype)
    local x = blocks.linear(params, name, pixels, {})
    local places = positions_of(params["embeddings.position_embedding.weight"],
      inputs.spatial_shapes, pixels:size(1), side_of(c))
    return x + places, { mask = masks.padding(inputs.pixel_attention_mask, x.dtype) }
  end,
}
