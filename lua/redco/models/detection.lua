--- The loss of models that find objects (Carion et al., 2020): each object of an image is assigned
--- to the query whose class and box fit it best; all others are to find none. Boxes are {centre x,
--- centre y, width, height} in parts of the image. Shapes: B images, Q queries, N objects of an
--- image, C classes and one for none.
local arguments = require "redco.arguments"
local assignment = require "redco.models.assignment"
local blocks = require "redco.models.blocks"
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

-- Returns the generalised intersection over union (Rezatofighi et al., 2019) of boxes [..., 4].
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
  return both / union - (all - union) / all
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

-- Returns the costs [B, N, Q] of an object in a query. What is no number costs nothing: then the
-- loss is none either.
local function costs_of(c, logits, boxes, labels, known_boxes)
  local n, n_queries = labels:size(1), logits:size(1)
  local each = labels:clamp_min(0):unsqueeze(1):expand { -1, n_queries, -1 }
  local by_class = -logits:softmax(-1):gather(2, each)
  local a, b = boxes:unsqueeze(2):expand { -1, -1, n, -1 }, known_boxes:unsqueeze(1)
  local costs = (a - b):abs():sum(-1) * c.bbox_cost + by_class * c.class_cost
    - similarity(a, b) * c.giou_cost
  return costs:transpose(1, 2):nan_to_num(0, 0, 0)
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

-- Returns these as tensors [B, N], [B, N] and [B, Q]; queries count from 0.
local function matches(c, logits, boxes, inputs)
  local device, labels, n_queries = logits.device, inputs.labels, logits:size(1)
  if logits:to_local().device == "meta" then  -- the layout is found with tensors without values
    local none = torch.zeros_like(labels)
    return none, none:eq(0), torch.zeros({ labels:size(0), n_queries },
      { dtype = "int64", device = device })
  end
  labels = labels:full():cpu()
  local costs = costs_of(c, logits:full():cpu(), boxes:full():cpu(), labels,
    inputs.boxes:full():cpu():to(boxes.dtype))
  local queries, has_query, classes = assigned(c, costs:tolist(), labels:tolist(), n_queries)
  return torch.tensor(queries, { dtype = "int64", device = device }) - 1,
    torch.tensor(has_query, { dtype = "bool", device = device }),
    torch.tensor(classes, { dtype = "int64", device = device })
end

--- Of logits [B, Q, C + 1] and boxes [B, Q, 4]. inputs.labels [B, N] are the classes of objects,
--- -100 for padding; inputs.boxes [B, N, 4] their boxes.
function detection.loss(c, found, inputs)
  local dtype = blocks.wide_dtype(found.logits)
  local logits, boxes = found.logits:to(dtype), found.boxes:to(dtype)
  check_labels(c, logits, inputs)
  local queries, has_query, classes = torch.no_grad(matches, c, logits, boxes, inputs)

  local weights = classes:eq(c.num_labels):to(dtype) * (c.eos_coefficient - 1) + 1
  local by_class = -logits:log_softmax(-1):gather(2, classes:unsqueeze(-1)):squeeze(-1)
  local loss = (by_class * weights):sum() / weights:sum()

  local n = inputs.labels:ge(0):sum():clamp_min(1)
  -- In place of padding is one box, which adds 0.
  local is_padding = has_query:logical_not():unsqueeze(-1)
  local own = boxes:gather(1, queries:unsqueeze(-1):expand { -1, -1, 4 })
    :masked_fill(is_padding, 0.5)
  local target = inputs.boxes:to(dtype):masked_fill(is_padding, 0.5)
  local distances = (own - target):abs():sum() / n
  local shapes = (1 - similarity(own, target)):sum() / n
  return loss + distances * c.bbox_loss_coefficient + shapes * c.giou_loss_coefficient
end

local options = arguments("models.detections", { threshold = 0.5 }, { "sizes" })

detection.detections = registry.define("redco.models.detections", [[
detections(logits [images, queries, classes + 1], boxes [images, queries, 4], {threshold = 0.5, sizes = nil}) -> list of tables
Returns what a model that finds objects, as DETR, has found in each image: the `labels` [n], `scores`
[n] and `boxes` [n, 4], {left, upper, right, lower}, of the objects with a score above the threshold.
`logits` and `boxes` are what a call of the model returns. With `sizes`, a list of {height, width},
boxes are in pixels of images of these sizes, else in parts of the image. Boxes for a loss are
{centre x, centre y, width, height} in parts of the image: of a box of COCO, {left, upper, width,
height} in pixels, {(left + width / 2) / image_width, (upper + height / 2) / image_height, width /
image_width, height / image_height}.]], function(logits, boxes, given)
  local o = options(given)
  for name, t in pairs { logits = logits, boxes = boxes } do
    if not torch.is_tensor(t) or t:dim() ~= 3 or name == "boxes" and t:size(2) ~= 4 then
      fail("models.detections: expected %s [images, queries, %s], got %s", name,
        name == "boxes" and "4" or "classes + 1", native.describe(t))
    end
  end
  if o.sizes and #o.sizes ~= logits:size(0) then
    fail("models.detections: %d sizes for %d images", #o.sizes, logits:size(0))
  end
  return torch.no_grad(function()
    local n_classes, found = logits:size(2) - 1, {}
    local scores, labels = logits:full():cpu():float():softmax(-1):narrow(2, 0, n_classes):max(-1)
    local corners = torch.stack({ sides(boxes:full():cpu():float()) }, -1)
    for i = 0, logits:size(0) - 1 do
      local places = scores[i]:gt(o.threshold):nonzero():reshape { -1 }
      local own = corners[i]:index_select(0, places)
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
