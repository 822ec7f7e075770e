--- The loss of models that find objects (Carion et al., 2020): each object of an image is assigned
--- to the query whose class and box fit it best; all others are to find none. Boxes are {centre x,
--- centre y, width, height} in parts of the image. Shapes: B images, Q queries, N objects of an
--- image, C classes and one for none.
local arguments = require "redco.arguments"
local assignment = require "redco.models.tasks.assignment"
local blocks = require "redco.models.layers.blocks"
local denoising = require "redco.models.images.rt_detr_denoising"
local fail = require "redco.fail"
local native = require "redco.native"
local registry = require "redco.registry"
local torch = require "redco.torch"

local detection = {}

-- Returns the left, upper, right and lower sides of boxes [..., 4].
local function sides(boxes)
  local x, y, width, height = unpack(boxes:unbind(-1))
  return x - width / 2, y - height / 2, x + width / 2, y + height / 2
end

-- Returns the generalised intersection over union (Rezatofighi et al., 2019) of boxes [..., 4], and
-- the plain one.
local function similarity(a, b)
  local left_a, upper_a, right_a, lower_a = sides(a)
  local left_b, upper_b, right_b, lower_b = sides(b)
  local function area(left, upper, right, lower)
    return (right - left):clamp_min(0) * (lower - upper):clamp_min(0)
  end
  local both = area(torch.maximum(left_a, left_b), torch.maximum(upper_a, upper_b),
    torch.minimum(right_a, right_b), torch.minimum(lower_a, lower_b))
  local all = area(torch.minimum(left_a, left_b), torch.minimum(upper_a, upper_b),
    torch.maximum(right_a, right_b), torch.maximum(lower_a, lower_b))
  local union = (right_a - left_a) * (lower_a - upper_a) + (right_b - left_b) * (lower_b - upper_b)
    - both
  return both / union - (all - union) / all, both / union
end

local function shape_of(t) return table.concat(t.shape, ", ") end

local function check_labels(c, logits, inputs)
  local labels, boxes = inputs.labels, inputs.boxes
  if not labels or not boxes then
    fail("%s: inputs.%s are missing", c.architectures[1], labels and "boxes" or "labels")
  end
  if labels:dim() ~= 2 or labels:size(0) ~= logits:size(0) or labels.dtype ~= "int64" then
    fail("%s: labels are %s [%s], expected the classes of the objects, int64 [%d, objects]",
      c.model_type, labels.dtype, shape_of(labels), logits:size(0))
  end
  if shape_of(boxes) ~= shape_of(labels) .. ", 4" then
    fail("%s: boxes are [%s], expected [%s, 4]", c.model_type, shape_of(boxes), shape_of(labels))
  end
end

-- Returns the costs [B, N, Q] of an object in a query; `by_class` [B, Q, N] are the costs of its
-- class. Replaces NaN and infinity with 0: the loss then is not finite either.
local function costs_with(weights, by_class, boxes, known_boxes)
  local a = boxes:unsqueeze(2):expand { -1, -1, by_class:size(2), -1 }
  local b = known_boxes:unsqueeze(1)
  local costs = (a - b):abs():sum(-1) * weights.box + by_class * weights.class
    - similarity(a, b) * weights.shape
  return costs:transpose(1, 2):nan_to_num(0, 0, 0)
end

-- Gathers from the scores [B, Q, C] of queries those of the objects' classes, [B, Q, N].
local function of_objects(scores, labels)
  return scores:gather(2, labels:clamp_min(0):unsqueeze(1):expand { -1, scores:size(1), -1 })
end

local function costs_of(c, logits, boxes, labels, known_boxes)
  return costs_with({ box = c.bbox_cost, class = c.class_cost, shape = c.giou_cost },
    -of_objects(logits:softmax(-1), labels), boxes, known_boxes)
end

-- Returns costs for classes with independent yes-or-no scores (Lin et al., 2017).
local function focal_costs_of(c, logits, boxes, labels, known_boxes)
  local p = of_objects(logits:sigmoid(), labels)
  local alpha, gamma = c.matcher_alpha, c.matcher_gamma
  local yes = (1 - p):pow(gamma) * -(p + 1e-8):log() * alpha
  local no = p:pow(gamma) * -(1 - p + 1e-8):log() * (1 - alpha)
  return costs_with({ box = c.matcher_bbox_cost, class = c.matcher_class_cost,
    shape = c.matcher_giou_cost }, yes - no, boxes, known_boxes)
end

-- Returns lists: the query of each object, counted from 1; whether an object has one; and the class
-- of each query.
local function assigned(c, costs, labels, n_queries)
  local queries, has_query, classes = {}, {}, {}
  for i, row in ipairs(labels) do
    local own, places = {}, {}
    for k, class in ipairs(row) do
      if class >= c.num_labels then
        fail("%s: labels have the class %d, and the model has num_labels = %d", c.model_type, class,
          c.num_labels)
      end
      if class >= 0 then own[#own + 1], places[#places + 1] = costs[i][k], k end
    end
    queries[i], has_query[i], classes[i] = {}, {}, {}
    for k = 1, #row do queries[i][k], has_query[i][k] = 1, false end
    for k = 1, n_queries do classes[i][k] = c.num_labels end
    for k, query in pairs(assignment(own, #own, n_queries)) do
      local place = places[k]
      queries[i][place], has_query[i][place] = query, true
      classes[i][query] = row[place]
    end
  end
  return queries, has_query, classes
end

-- Returns the results of `assigned` as tensors [B, N], [B, N] and [B, Q]; queries count from 0.
-- find_costs(c, logits, boxes, labels, known boxes) returns costs [B, N, Q].
local function matches(c, logits, boxes, inputs, find_costs)
  local device, labels, n_queries = logits.device, inputs.labels, logits:size(1)
  if logits:to_local().device == "meta" then  -- the search for a layout has no values
    local none = torch.zeros_like(labels)
    return none, none:eq(0), torch.zeros({ labels:size(0), n_queries },
      { dtype = "int64", device = device })
  end
  labels = labels:full():cpu()
  local costs = find_costs(c, logits:full():cpu(), boxes:full():cpu(), labels,
    inputs.boxes:full():cpu():to(boxes.dtype))
  local queries, has_query, classes = assigned(c, costs:tolist(), labels:tolist(), n_queries)
  return torch.tensor(queries, { dtype = "int64", device = device }) - 1,
    torch.tensor(has_query, { dtype = "bool", device = device }),
    torch.tensor(classes, { dtype = "int64", device = device })
end

-- Returns the boxes of objects' queries, and those of the objects, both [B, N, 4]. For padding,
-- both are the same box, which adds 0 to the loss.
local function matched(boxes, known_boxes, queries, has_query)
  local is_padding = has_query:logical_not():unsqueeze(-1)
  return boxes:gather(1, queries:unsqueeze(-1):expand { -1, -1, 4 }):masked_fill(is_padding, 0.5),
    known_boxes:to(boxes.dtype):masked_fill(is_padding, 0.5)
end

--- Of logits [B, Q, C + 1] and boxes [B, Q, 4]. inputs.labels [B, N] are the classes of objects,
--- -100 for padding; inputs.boxes [B, N, 4] their boxes.
function detection.loss(c, found, inputs)
  local dtype = blocks.wide_dtype(found.logits)
  local logits, boxes = found.logits:to(dtype), found.boxes:to(dtype)
  check_labels(c, logits, inputs)
  local queries, has_query, classes = torch.no_grad(matches, c, logits, boxes, inputs, costs_of)

  local weights = classes:eq(c.num_labels):to(dtype) * (c.eos_coefficient - 1) + 1
  local by_class = -logits:log_softmax(-1):gather(2, classes:unsqueeze(-1)):squeeze(-1)
  local loss = (by_class * weights):sum() / weights:sum()

  local n = inputs.labels:ge(0):sum():clamp_min(1)
  local own, target = matched(boxes, inputs.boxes, queries, has_query)
  local distances = (own - target):abs():sum() / n
  local shapes = (1 - similarity(own, target)):sum() / n
  return loss + distances * c.bbox_loss_coefficient + shapes * c.giou_loss_coefficient
end

-- The loss of one pair of logits [B, Q, C] and boxes [B, Q, 4]. The target score of a class is the
-- overlap of the query's box with the object's (Zhang et al., 2021). The other arguments are the
-- results of `matches`, and the boxes of objects.
local function varifocal_loss(c, logits, boxes, queries, has_query, classes, known_boxes)
  local own, target = matched(boxes, known_boxes, queries, has_query)
  local score, is_class, weights
  torch.no_grad(function()
    local _, overlap = similarity(own, target)
    score = torch.zeros_like(logits:select(2, 0))
      :scatter_add(1, queries, overlap * has_query:to(logits.dtype)):unsqueeze(-1)
    is_class = classes:unsqueeze(-1)
      :eq(torch.arange(c.num_labels, { device = logits.device })):to(logits.dtype)
    score = score * is_class
    weights = logits:sigmoid():pow(c.focal_loss_gamma) * (1 - is_class) * c.focal_loss_alpha + score
  end)
  local by_class = -(score * torch.log_sigmoid(logits) + (1 - score) * torch.log_sigmoid(-logits))
  return (by_class * weights):sum() * c.weight_loss_vfl
    + (own - target):abs():sum() * c.weight_loss_bbox
    + (1 - (similarity(own, target))):sum() * c.weight_loss_giou
end

--- Of a list of { logits = [B, Q, C], boxes = [B, Q, 4] }, whose losses are added, with
--- list.denoised, another or nil, of the queries of list.n_groups (rt_detr_denoising.lua). A class
--- has no place for none.
function detection.focal_loss(c, list, inputs)
  local sum = 0
  for _, found in ipairs(list) do
    local dtype = blocks.wide_dtype(found.logits)
    check_labels(c, found.logits, inputs)
    local logits, boxes = found.logits:to(dtype), found.boxes:to(dtype)
    local queries, has_query, classes = torch.no_grad(matches, c, logits, boxes, inputs,
      focal_costs_of)
    sum = sum + varifocal_loss(c, logits, boxes, queries, has_query, classes, inputs.boxes)
  end
  for _, found in ipairs(list.denoised or {}) do
    local dtype = blocks.wide_dtype(found.logits)
    sum = sum + varifocal_loss(c, found.logits:to(dtype), found.boxes:to(dtype),
      denoising.matches(c, inputs, list.n_groups)) / list.n_groups
  end
  return sum / inputs.labels:ge(0):sum():clamp_min(1)
end

-- Returns scores and classes [B, Q], and the query of each, or nil if they are in the order of the
-- queries.
local function best(logits, is_focal)
  if not is_focal then
    return logits:softmax(-1):narrow(2, 0, logits:size(2) - 1):max(-1)
  end
  local n_queries, n_classes = logits:size(1), logits:size(2)
  local scores, places = logits:sigmoid():flatten(1):topk(n_queries, 1)
  return scores, places % n_classes, places:div(n_classes, { rounding_mode = "floor" })
end

local options = arguments("models.detections", { threshold = 0.5, use_focal_loss = false },
  { "sizes" })

detection.detections = registry.define("redco.models.detections", [[
detections(logits [images, queries, classes + 1], boxes [images, queries, 4], {threshold = 0.5, sizes = nil, use_focal_loss = false}) -> list of tables
Returns what a model that finds objects, as DETR, has found in each image: the `labels` [n], `scores`
[n] and `boxes` [n, 4], {left, upper, right, lower}, of the objects with a score above the threshold.
`logits` and `boxes` are what a call of the model returns. With `sizes`, a list of {height, width},
boxes are in pixels of images of these sizes, else in parts of the image. Boxes for a loss are
{centre x, centre y, width, height} in parts of the image: of a box of COCO, {left, upper, width,
height} in pixels, {(left + width / 2) / image_width, (upper + height / 2) / image_height, width /
image_width, height / image_height}.

RT-DETR needs `use_focal_loss = true`: its logits [images, queries, classes] have no place for no
object, and a query may be several objects. They stand in the order of their scores.]],
function(logits, boxes, given)
  local o = options(given)
  for name, t in pairs { logits = logits, boxes = boxes } do
    if not torch.is_tensor(t) or t:dim() ~= 3 or name == "boxes" and t:size(2) ~= 4 then
      local last = o.use_focal_loss and "classes" or "classes + 1"
      fail("models.detections: expected %s [images, queries, %s], got %s", name,
        name == "boxes" and "4" or last, native.describe(t))
    end
  end
  if o.sizes and #o.sizes ~= logits:size(0) then
    fail("models.detections: %d sizes for %d images", #o.sizes, logits:size(0))
  end
  return torch.no_grad(function()
    local found = {}
    local scores, labels, queries = best(logits:full():cpu():float(), o.use_focal_loss)
    local corners = torch.stack({ sides(boxes:full():cpu():float()) }, -1)
    for i = 0, logits:size(0) - 1 do
      local places = scores[i]:gt(o.threshold):nonzero():reshape { -1 }
      local own = corners[i]:index_select(0, queries and queries[i]:index_select(0, places)
        or places)
      if o.sizes then
        local height, width = unpack(o.sizes[i + 1])
        own = own * torch.tensor { width, height, width, height }
      end
      found[i + 1] = { labels = labels[i]:index_select(0, places),
        scores = scores[i]:index_select(0, places), boxes = own }
    end
    return found
  end)
end)

return detection
