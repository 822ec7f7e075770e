--- The further queries of RT-DETR in training (Zhang et al., 2023): each group has all objects of
--- an image twice, with noise in classes and boxes. The model is to find the objects from the first
--- of the two, and nothing from the second, which has more noise. Shapes: B images, N objects of an
--- image, G groups, D = 2 G N queries.
local blocks = require "redco.models.layers.blocks"
local torch = require "redco.torch"

local denoising = {}

--- Returns random numbers in [0, 1), of the shape and the dtype of a tensor.
function denoising.uniform(like, o)
  return torch.empty_like(like):uniform_(0, 1, { generator = o.rng })
end

-- Returns boxes [B, D, 4] with moved sides. A side moves by a random multiple of half the box's
-- length, times box_noise_scale: up to 1, in the second half of a group from 1 to 2.
local function moved(c, boxes, n_groups, o)
  local n = boxes:size(1) / n_groups / 2
  local centres, extents = unpack(boxes:chunk(2, -1))
  local corners = torch.cat({ centres - extents / 2, centres + extents / 2 }, -1)
  local is_second = torch.arange(2, { device = boxes.device }):to(boxes.dtype)
    :view { 1, 2, 1 }:expand { n_groups, 2, n }:reshape { 1, -1, 1 }
  local parts = denoising.uniform(corners, o) + is_second
  local signs = denoising.uniform(corners, o):lt(0.5):to(boxes.dtype) * 2 - 1
  local half = torch.cat({ extents, extents }, -1) * (0.5 * c.box_noise_scale)
  local first, last = unpack((corners + parts * signs * half):clamp(0, 1):chunk(2, -1))
  return torch.cat({ (first + last) / 2, last - first }, -1)
end

-- Replaces some of the classes [B, D] with random ones. Padding stays num_labels.
local function changed(c, classes, like, o)
  local shape = like:narrow(-1, 0, 1):squeeze(-1)
  local is_other = denoising.uniform(shape, o):lt(0.5 * c.label_noise_ratio)
    :logical_and(classes:lt(c.num_labels))
  local others = (denoising.uniform(shape, o) * c.num_labels):floor():to "int64"
  return torch.where(is_other, others, classes)
end

-- Returns which queries see which, [D + Q, D + Q]. The D queries see those of their own group and
-- the Q others; the others see only each other.
local function seen(n_each, n_groups, n_others, device)
  local numbers = torch.cat({ torch.arange(n_groups, { device = device }):view { -1, 1 }
    :expand { n_groups, n_each }:reshape { -1 },
    torch.full({ n_others }, n_groups, { dtype = "int64", device = device }) }, 0)
  local is_other = numbers:eq(n_groups):unsqueeze(0)
  return numbers:unsqueeze(1):eq(numbers:unsqueeze(0)):logical_or(is_other)
end

--- Returns the queries of a training step, or nil: { x [B, D, size], boxes [B, D, 4], mask, n (D),
--- n_groups }.
function denoising.queries(c, params, inputs, o)
  local labels = inputs.labels
  local n = o.train and c.auxiliary_loss and c.num_denoising > 0 and labels and labels:size(1) or 0
  if n == 0 then return nil end
  local n_groups = math.max(1, math.floor(c.num_denoising / n))
  local classes, boxes = torch.no_grad(function()
    local dtype = params["model.denoising_class_embed.weight"].dtype
    local is_padding = labels:lt(0)
    local own = labels:masked_fill(is_padding, c.num_labels):tile { 1, 2 * n_groups }
    local known = inputs.boxes:to(dtype):masked_fill(is_padding:unsqueeze(-1), 0)
      :tile { 1, 2 * n_groups, 1 }
    local noisy = moved(c, known, n_groups, o)
    return changed(c, own, noisy, o), noisy
  end)
  return {
    x = blocks.embedding(params, "model.denoising_class_embed", classes, c.num_labels),
    boxes = boxes, mask = seen(2 * n, n_groups, c.num_queries, labels.device), n = 2 * n * n_groups,
    n_groups = n_groups,
  }
end

--- Returns what `matches` of detection.lua does for these queries: the places of objects in the
--- groups [B, G N], whether each is one, and the classes [B, D]; and their boxes [B, G N, 4].
function denoising.matches(c, inputs, n_groups)
  local labels = inputs.labels
  local n_images, n = labels:size(0), labels:size(1)
  local places = torch.arange(n_groups * n, { device = labels.device }):view { n_groups, n }
  places = places + places:div(n, { rounding_mode = "floor" }) * n
  local is_object = labels:ge(0)
  local of_group = torch.cat({ labels:masked_fill(is_object:logical_not(), c.num_labels),
    torch.full_like(labels, c.num_labels) }, 1)
  return places:reshape { 1, -1 }:expand { n_images, -1 }, is_object:tile { 1, n_groups },
    of_group:tile { 1, n_groups }, inputs.boxes:tile { 1, n_groups, 1 }
end

return denoising
