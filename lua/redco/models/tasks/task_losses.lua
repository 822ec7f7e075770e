--- The losses of tasks: functions(logits, inputs, c, o) -> loss, count. `o` has ignore_index and
--- label_smoothing.
local blocks = require "redco.models.layers.blocks"
local fail = require "redco.fail"
local nn = require "redco.nn"
local torch = require "redco.torch"

local losses = {}

local function is_integer(t) return t.dtype == "int64" or t.dtype == "int32" end

-- Returns the loss f(logits, labels), both in a wide dtype, and the number of labels.
local function mean_loss(f, logits, labels)
  local dtype = blocks.wide_dtype(logits)
  logits, labels = logits:to(dtype), labels:to(dtype):reshape(logits.shape)
  return f(logits, labels), torch.ones_like(labels):sum()
end

losses.problems = {
  regression = function(...) return mean_loss(torch.mse_loss, ...) end,
  multi_label_classification = function(...)
    return mean_loss(torch.binary_cross_entropy_with_logits, ...)
  end,
  single_label_classification = nn.cross_entropy,
}

function losses.of_classes(logits, inputs, c, o)
  local labels = inputs.labels
  local problem = c.problem_type or c.num_labels == 1 and "regression"
    or is_integer(labels) and "single_label_classification" or "multi_label_classification"
  local options = problem == "single_label_classification" and o or nil
  return losses.problems[problem](logits, labels, options)
end

--- Returns the `loss` of a family that classifies images; `architecture` names it in errors.
function losses.of_images(architecture)
  return function(c, logits, inputs, o)
    if not inputs.labels then fail("%s: inputs.labels are missing", architecture) end
    return losses.of_classes(logits, inputs, c,
      { ignore_index = o.ignore_index, label_smoothing = o.label_smoothing })
  end
end

function losses.of_tokens(logits, inputs, _, o)
  return nn.cross_entropy(logits, inputs.labels, o)
end

--- Of scores of classes [B, classes, H, W] at the pixels of labels [B, rows, columns], to whose
--- size they are resized. The label semantic_loss_ignore_index is none. With one class it is yes or
--- no, and the mean is that of all pixels.
function losses.of_pixels(c, logits, inputs)
  local labels = inputs.labels
  if not labels then fail("%s: inputs.labels are missing", c.architectures[1]) end
  if labels:dim() ~= 3 or labels:size(0) ~= logits:size(0) or not is_integer(labels) then
    fail("%s: labels are %s [%s], expected the class of each pixel, int64 [%d, height, width]",
      c.model_type, labels.dtype, table.concat(labels.shape, ", "), logits:size(0))
  end
  local dtype, none = blocks.wide_dtype(logits), c.semantic_loss_ignore_index
  logits = torch.upsample_bilinear2d(logits:to(dtype), { labels:size(1), labels:size(2) }, false)
  if c.num_labels > 1 then
    return nn.cross_entropy(logits:permute { 0, 2, 3, 1 }, labels, { ignore_index = none })
  end
  local is_known = labels:ge(0):logical_and(labels:ne(none)):to(dtype)
  local weights = { weight = is_known }
  return torch.binary_cross_entropy_with_logits(logits:squeeze(1), labels:to(dtype), weights),
    torch.ones_like(is_known):sum()
end

-- Positions outside the text are ignored.
function losses.of_spans(logits, inputs, _, o)
  local length = logits:size(1)
  local function loss(k, positions)
    return nn.cross_entropy(logits:select(-1, k), positions:view { -1 }:clamp(0, length),
      { ignore_index = length, label_smoothing = o.label_smoothing })
  end
  local first, count = loss(0, inputs.start_positions)
  return (first + loss(1, inputs.end_positions)) / 2, count
end

-- The loss of ELECTRA's discriminator: labels are 1 for replaced tokens. Ignores padding.
function losses.of_replaced_tokens(logits, inputs)
  local dtype = blocks.wide_dtype(logits)
  local labels, mask = inputs.labels:to(dtype), inputs.attention_mask
  local weight = mask and mask:eq(1):to(dtype) or torch.ones_like(labels)
  local count = weight:sum()
  local sum = 2  -- of LibTorch's reductions
  return torch.binary_cross_entropy_with_logits(logits:to(dtype), labels,
    { weight = weight, reduction = sum }) / count, count
end

return losses
