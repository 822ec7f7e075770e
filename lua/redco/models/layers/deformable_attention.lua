--- Deformable attention over several images (Zhu et al., 2020): a query looks at a few points
--- around its box. Shapes: B batch, Q queries, H heads, L levels (images of different sizes), P
--- points.
local blocks = require "redco.models.layers.blocks"
local fail = require "redco.fail"
local nn = require "redco.nn"
local torch = require "redco.torch"

local deformable = {}

local bilinear, zeros = 0, 0  -- of LibTorch's grid_sampler

local function xavier(t, generator)
  return nn.init.xavier_uniform_(t, { generator = generator })
end

-- In a new layer, the points of each head are on a ray from the centre of the box.
local function rays(n_heads, n_levels, n_points)
  return function(t)
    local angles = torch.arange(n_heads):float() * (2 * math.pi / n_heads)
    local ray = torch.stack({ angles:cos(), angles:sin() }, -1)
    ray = (ray / ray:abs():amax({ -1 }, true)):view { n_heads, 1, 1, 2 }
    local far = torch.arange(1, n_points + 1):float():view { 1, 1, -1, 1 }
    local points = (ray * far):expand { n_heads, n_levels, n_points, 2 }
    return torch.no_grad(function() return t:copy_(points:reshape { -1 }) end)
  end
end

--- Declares the parameters of a layer.
function deformable.add_parameters(add, name, size, n_heads, n_levels, n_points)
  local n = n_heads * n_levels * n_points
  blocks.add_linear(add, name .. "sampling_offsets", size, 2 * n, blocks.zeros,
    rays(n_heads, n_levels, n_points))
  blocks.add_linear(add, name .. "attention_weights", size, n, blocks.zeros)
  blocks.add_linear(add, name .. "value_proj", size, size, xavier)
  blocks.add_linear(add, name .. "output_proj", size, size, xavier)
end

-- Samples the image at points [B, Q, H, P, 2], fractions of the image: [B H, size, Q, P].
local function seen(image, points)
  local grid = (points * 2 - 1):transpose(1, 2):flatten(0, 1)
  return torch.grid_sampler(image, grid, bilinear, zeros, false)
end

--- Returns function(params, name, x, memory, sizes, boxes, o) -> [B, Q, size]. memory [B, places,
--- size] has the places of all images, whose { height, width } are the list `sizes`; boxes
--- [B, Q, 4] are those around which queries x [B, Q, size] look. `scale` is that of the points in a
--- box, beside the parameter n_points_scale [L P], or one by P.
function deformable.new(n_heads, n_levels, n_points, scale)
  return function(params, name, x, memory, sizes, boxes, o)
    local batch, n_queries, size = unpack(x.shape)
    local function linear(part, y) return blocks.linear(params, name .. part, y, o) end
    if #sizes ~= n_levels then
      fail("deformable attention: expected %d images, got %d", n_levels, #sizes)
    end
    local value = linear("value_proj", memory):view { batch, -1, n_heads, size / n_heads }
    local shape = { batch, n_queries, n_heads, n_levels, n_points, 2 }
    local centres, extents = unpack(boxes:view { batch, n_queries, 1, 1, 1, 4 }:chunk(2, -1))
    local of_points = params[name .. "n_points_scale"]
    of_points = of_points and of_points:detach():view { n_levels, n_points, 1 } or 1 / n_points
    local points = centres
      + linear("sampling_offsets", x):view(shape) * of_points * extents * scale
    local weights = linear("attention_weights", x)
      :view { batch, n_queries, n_heads, n_levels * n_points }:softmax(-1)
      :transpose(1, 2):reshape { batch * n_heads, 1, n_queries, n_levels * n_points }
    local parts, first = {}, 0
    for level, sides in ipairs(sizes) do
      local height, width = unpack(sides)
      local image = value:narrow(1, first, height * width):permute { 0, 2, 3, 1 }
        :reshape { batch * n_heads, size / n_heads, height, width }
      parts[level] = seen(image, points:select(3, level - 1))
      first = first + height * width
    end
    local y = (torch.cat(parts, -1) * weights):sum(-1):view { batch, size, n_queries }
    return linear("output_proj", y:transpose(1, 2))
  end
end

return deformable
