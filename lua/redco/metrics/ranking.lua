--- Metrics of scores of a positive class, with the results of scikit-learn.
local arguments = require "redco.arguments"
local check_integer = require "redco.check_integer"
local fail = require "redco.fail"
local numbers = require "redco.metrics.numbers"
local registry = require "redco.registry"
local torch = require "redco.torch"

local ranking = {}

-- Returns the groups of equal scores, the highest first: the counts of positive and negative
-- examples in each, and those of all.
local function groups_of(where, scores, references, pos_label)
  scores = numbers(where, "scores", scores)
  if torch.is_tensor(references) then references = references:reshape { -1 }:tolist() end
  if type(references) ~= "table" then
    fail("%s: references: expected a list or a tensor of classes, got %s", where, type(references))
  end
  if #scores == 0 or #scores ~= #references then
    fail("%s: expected as many scores as references, and at least one, got %d and %d", where,
      #scores, #references)
  end
  local order, groups, n_pos, n_neg, first_other = {}, {}, 0, 0, nil
  for i in ipairs(scores) do order[i] = i end
  table.sort(order, function(a, b) return scores[a] > scores[b] end)
  for rank, i in ipairs(order) do
    if rank == 1 or scores[i] ~= groups[#groups].score then
      groups[#groups + 1] = { score = scores[i], pos = 0, neg = 0 }
    end
    local group = groups[#groups]
    if references[i] == pos_label then
      group.pos, n_pos = group.pos + 1, n_pos + 1
    else
      if first_other == nil then first_other = references[i] end
      if references[i] ~= first_other then
        fail("%s: the references have more than two classes: %s, %s and %s", where,
          pos_label, first_other, references[i])
      end
      group.neg, n_neg = group.neg + 1, n_neg + 1
    end
  end
  return groups, n_pos, n_neg
end

local function check_both(where, n_pos, n_neg, pos_label)
  if n_pos > 0 and n_neg > 0 then return end
  fail("%s: it is not defined for references of one class: %d of %d are pos_label = %s", where,
    n_pos, n_pos + n_neg, pos_label)
end

local auc = arguments("metrics.roc_auc", { pos_label = 1 })
ranking.roc_auc = registry.define("redco.metrics.roc_auc", [[
roc_auc(scores: list of numbers or Tensor, references, {pos_label = 1}) -> number
Returns the area under the receiver operating characteristic, from 0 to 1: the probability that an
example of the class pos_label has a higher score than one of the other class. Equal scores count
half. References of one class only are an error.]], function(scores, references, options)
  local where, pos_label = "metrics.roc_auc", auc(options).pos_label
  local groups, n_pos, n_neg = groups_of(where, scores, references, pos_label)
  check_both(where, n_pos, n_neg, pos_label)
  local above, area = 0, 0  -- positive examples with higher scores
  for _, group in ipairs(groups) do
    area = area + group.neg * (above + group.pos / 2)
    above = above + group.pos
  end
  return area / (n_pos * n_neg)
end)

local curve = arguments("metrics.roc_curve", { pos_label = 1 })
ranking.roc_curve = registry.define("redco.metrics.roc_curve", [[
roc_curve(scores: list of numbers or Tensor, references, {pos_label = 1}) -> {fpr, tpr, thresholds}
Returns the points of the receiver operating characteristic, three lists: for each threshold, from
the highest, the fractions of negative and of positive examples with a score of at least it. The first
threshold is infinite.]], function(scores, references, options)
  local where, pos_label = "metrics.roc_curve", curve(options).pos_label
  local groups, n_pos, n_neg = groups_of(where, scores, references, pos_label)
  check_both(where, n_pos, n_neg, pos_label)
  local fpr, tpr, thresholds, pos, neg = { 0 }, { 0 }, { math.huge }, 0, 0
  for i, group in ipairs(groups) do
    pos, neg = pos + group.pos, neg + group.neg
    fpr[i + 1], tpr[i + 1], thresholds[i + 1] = neg / n_neg, pos / n_pos, group.score
  end
  return { fpr = fpr, tpr = tpr, thresholds = thresholds }
end)

local precision = arguments("metrics.average_precision", { pos_label = 1 })
ranking.average_precision = registry.define("redco.metrics.average_precision", [[
average_precision(scores: list of numbers or Tensor, references, {pos_label = 1}) -> number
Returns the mean of the precisions at each threshold, weighted by the increase in recall, from 0 to
1. References without the class pos_label are an error.]], function(scores, references, options)
  local where, pos_label = "metrics.average_precision", precision(options).pos_label
  local groups, n_pos = groups_of(where, scores, references, pos_label)
  if n_pos == 0 then
    fail("%s: none of the %d references is pos_label = %s", where, #references,
      pos_label)
  end
  local pos, all, sum = 0, 0, 0
  for _, group in ipairs(groups) do
    pos, all = pos + group.pos, all + group.pos + group.neg
    sum = sum + group.pos / n_pos * pos / all
  end
  return sum
end)

local best = arguments("metrics.top_k_accuracy", { k = 5 })
ranking.top_k_accuracy = registry.define("redco.metrics.top_k_accuracy", [[
top_k_accuracy(scores [examples, classes], references [examples], {k: integer = 5}) -> number
Returns the fraction of examples whose reference, a class from 0, is among the k classes with the
highest scores; of equal scores the later class comes first.]],
function(scores, references, options)
  local where, k = "metrics.top_k_accuracy", best(options).k
  if not torch.is_tensor(scores) or scores:dim() ~= 2 or scores:size(0) == 0 then
    fail("%s: scores: expected a tensor [examples, classes]", where)
  end
  check_integer(where, "k", k, 1, scores:size(1))
  references = torch.is_tensor(references) and references or torch.tensor(references)
  if references:dim() ~= 1 or references:size(0) ~= scores:size(0) then
    fail("%s: references: expected [%d], got [%s]", where, scores:size(0),
      table.concat(references.shape, ", "))
  end
  if scores:ne(scores):any():item() then fail("%s: scores: there are NaN among them", where) end
  local classes = scores:argsort { stable = true, dim = -1 }:narrow(-1, scores:size(1) - k, k)
  return classes:eq(references:unsqueeze(-1)):any(-1):double():mean():item()
end)

return ranking
