--- The prompts that SAM 2 (Ravi et al., 2024) reads beside an image: points, boxes and masks.
--- Shapes: B images, P objects in each image, N points for each object.
local blocks = require "redco.models.layers.blocks"
local fail = require "redco.fail"
local torch = require "redco.torch"

local prompts = { model_type = "sam2_prompt_encoder" }

-- Labels of points besides the rows of point_embed: "no point", and padding, which becomes zero.
local no_point, padding = -1, -10
local corners = { 2, 3 }  -- rows of point_embed for the corners of boxes

prompts.defaults = {
  hidden_size = 256,
  image_size = 1024,
  patch_size = 16,
  mask_input_channels = 16,
  num_point_embeddings = 4,
  hidden_act = "gelu",
  layer_norm_eps = 1e-6,
  scale = 1,
}

prompts.least = { mask_input_channels = 4, num_point_embeddings = corners[2] + 1 }

function prompts.check(c)
  local where = "sam2: prompt_encoder_config"
  if c.hidden_size % 2 ~= 0 then
    fail("%s: hidden_size is %d, expected an even number: half are sines and half cosines", where,
      c.hidden_size)
  end
  if c.mask_input_channels % 4 ~= 0 then
    fail("%s: mask_input_channels is %d, expected a multiple of 4", where, c.mask_input_channels)
  end
end

--- Declares the parameters; `std` is that of weights. The table of positions is of the whole model.
function prompts.add_parameters(c, add, std)
  local normal, size, most = blocks.normal(std), c.hidden_size, c.mask_input_channels
  local function convolution(name, n_in, n_out, side)
    blocks.add_convolution(add, name, { n_out, n_in, side, side }, normal)
  end
  add("point_embed.weight", { c.num_point_embeddings, size }, normal)
  add("not_a_point_embed.weight", { 1, size }, normal)
  add("no_mask_embed.weight", { 1, size }, normal)
  convolution("mask_embed.conv1", 1, most / 4, 2)
  blocks.add_layer_norm(add, "mask_embed.layer_norm1", most / 4)
  convolution("mask_embed.conv2", most / 4, most, 2)
  blocks.add_layer_norm(add, "mask_embed.layer_norm2", most)
  convolution("mask_embed.conv3", most, size, 1)
end

--- The name of the table of positions in files, behind the prefix of this part.
prompts.table_name = "shared_embedding.positional_embedding"

--- Declares the table of positions.
function prompts.add_table(c, add, name)
  add(name, { 2, c.hidden_size / 2 }, blocks.normal(c.scale))
end

-- Returns positions [..., size] of places [..., 2], column and row as fractions of the image: sines
-- and cosines along random directions.
local function positions_of(directions, places)
  local turned = torch.matmul((2 * places - 1):to(directions.dtype), directions) * (2 * math.pi)
  return torch.cat({ turned:sin(), turned:cos() }, -1)
end

--- The number of places of a side of the image.
function prompts.side(c) return math.floor(c.image_size / c.patch_size) end

--- Returns the positions [1, size, side, side] of the places of an image.
function prompts.positions_of_image(c, directions)
  local n = prompts.side(c)
  local along = (torch.arange(n, { device = directions.device }):float() + 0.5) / n
  local places = torch.stack({ along:unsqueeze(0):expand { n, n },
    along:unsqueeze(1):expand { n, n } }, -1)
  return positions_of(directions, places):permute { 2, 0, 1 }:unsqueeze(0)
end

-- Appends a row of "no point" to x [B, P, N, size].
local function ended(x, none)
  return torch.cat({ x, none:view { 1, 1, 1, -1 }:expand { x:size(0), x:size(1), 1, -1 } }, 2)
end

-- Returns points [B, P, N, 2] with their labels [B, P, N] as [B, P, N, size].
local function of_points(c, params, directions, points, labels)
  local x = positions_of(directions, (points + 0.5) / c.image_size)
  local own, kinds = labels:unsqueeze(-1), labels:clamp_min(0)
  x = torch.where(own:eq(no_point), params["not_a_point_embed.weight"], x)
  x = x:masked_fill(own:eq(padding), 0)
  return x + blocks.embedding(params, "point_embed", kinds) * own:ge(0):to(x.dtype)
end

-- Returns boxes [B, P, 4] as [B, P, 2, size].
local function of_boxes(c, params, directions, boxes)
  local places = boxes:reshape { boxes:size(0), boxes:size(1), 2, 2 }
  local kinds = params["point_embed.weight"]:narrow(0, corners[1], #corners)
  return positions_of(directions, (places + 0.5) / c.image_size) + kinds
end

-- Returns masks [B, 1, H, W] as [B, size, side, side].
local function of_masks(c, params, masks, activation)
  local side = math.floor(4 * c.image_size / c.patch_size)
  if masks:size(2) ~= side or masks:size(3) ~= side then
    masks = torch._upsample_bilinear2d_aa(masks:to(blocks.wide_dtype(masks)), { side, side }, false)
  end
  local x = masks:to(params["mask_embed.conv1.weight"].dtype)
  local function convolved(i, y, stride)
    return blocks.conv2d(params, "mask_embed.conv" .. i, y, { stride = stride })
  end
  for i = 1, 2 do
    local rows = convolved(i, x, 2):permute { 0, 2, 3, 1 }
    x = activation(blocks.layer_norm(params, "mask_embed.layer_norm" .. i, rows, c.layer_norm_eps))
      :permute { 0, 3, 1, 2 }
  end
  return convolved(3, x, 1)
end

local function check_shape(inputs, name, pattern)
  local t, dims = inputs[name], {}
  for dim in pattern:gmatch "[^, ]+" do dims[#dims + 1] = tonumber(dim) or dim end
  local fits = torch.is_tensor(t) and t:dim() == #dims
  for i, dim in ipairs(dims) do
    fits = fits and (type(dim) == "string" or t:size(i - 1) == dim)
  end
  if not fits then
    fail("sam2: inputs.%s: expected [%s], got %s", name, pattern, torch.is_tensor(t)
      and ("[%s]"):format(table.concat(t.shape, ", ")) or tostring(t))
  end
end

local patterns = { input_points = "batch, objects, points, 2",
  input_labels = "batch, objects, points", input_boxes = "batch, objects, 4",
  input_masks = "batch, 1, height, width", original_sizes = "batch, 2" }

local function check_inputs(inputs, n_images)
  for name, pattern in pairs(patterns) do
    if inputs[name] ~= nil then
      check_shape(inputs, name, pattern)
      if inputs[name]:size(0) ~= n_images then
        fail("sam2: inputs.%s are of %d images, and there are %d", name, inputs[name]:size(0),
          n_images)
      end
    end
  end
  local points, labels, boxes = inputs.input_points, inputs.input_labels, inputs.input_boxes
  if labels and not points then
    fail "sam2: inputs.input_labels are those of input_points, which are missing"
  end
  if labels and table.concat(labels.shape, " ") ~= table.concat(points.shape, " ", 1, 3) then
    fail("sam2: inputs.input_labels are [%s] and input_points [%s], expected one for each point",
      table.concat(labels.shape, ", "), table.concat(points.shape, ", "))
  end
  if points and boxes and points:size(1) ~= boxes:size(1) then
    fail("sam2: inputs.input_points are of %d objects and input_boxes of %d, expected as many",
      points:size(1), boxes:size(1))
  end
end

-- Scales places [B, ..., 2] from images of `sizes` [B, 2], height and width, to the square that the
-- model reads. Without sizes, they are already in the square.
local function in_square(c, places, sizes)
  if not places or not sizes then return places end
  local scale = c.image_size / sizes:flip { 1 }:to(blocks.wide_dtype(places))
  return (places:reshape { places:size(0), places:size(1), -1, 2 } * scale:view { -1, 1, 1, 2 })
    :reshape(places.shape)
end

--- Returns function(params, directions, inputs, like) -> tokens [B, P, N, size], and [B or 1, size,
--- side, side] or [1, size, 1, 1], which is added to the image; `like` is one of B images.
function prompts.new(c)
  local activation = blocks.activation("sam2", c.hidden_act)
  return function(params, directions, inputs, like)
    check_inputs(inputs, like:size(0))
    local sizes, labels = inputs.original_sizes, inputs.input_labels
    local points = in_square(c, inputs.input_points, sizes)
    local boxes = in_square(c, inputs.input_boxes, sizes)
    if not points and not boxes then
      points = torch.zeros({ like:size(0), 1, 1, 2 }, { device = like.device })
      labels = torch.full_like(points:select(-1, 0), no_point, { dtype = "int64" })
    end
    local parts = {}
    if points then
      labels = labels or torch.ones_like(points:select(-1, 0), { dtype = "int64" })
      parts[1] = of_points(c, params, directions, points, labels)
    end
    if boxes then parts[#parts + 1] = of_boxes(c, params, directions, boxes) end
    local tokens = ended(torch.cat(parts, 2), params["not_a_point_embed.weight"])
    local given = inputs.input_masks
    return tokens, given and of_masks(c, params, given, activation)
      or params["no_mask_embed.weight"]:view { 1, -1, 1, 1 }
  end
end

return prompts
