--- Scores of rankings of documents, as in the evaluation of information retrieval.
local arguments = require "redco.arguments"
local check_integer = require "redco.check_integer"
local fail = require "redco.fail"
local registry = require "redco.registry"
local torch = require "redco.torch"

-- Returns for each query the ranks, from 1, of its relevant documents in order, and their number.
-- Of equal scores the earlier document comes first. Only the first k are ranked.
local function ranks_of(where, scores, relevant, k)
  if not torch.is_tensor(scores) or scores:dim() ~= 2 or scores:numel() == 0 then
    fail("%s: scores: expected a tensor [queries, documents]", where)
  end
  if scores:ne(scores):any():item() then fail("%s: scores: there are NaN among them", where) end
  if type(relevant) ~= "table" or #relevant ~= scores:size(0) then
    fail("%s: relevant: expected a list of %d entries, one for each query, got %s", where,
      scores:size(0), type(relevant) == "table" and #relevant or type(relevant))
  end
  check_integer(where, "k", k, 1)
  local n = math.min(k, scores:size(1))
  local order = scores:argsort({ stable = true, dim = -1, descending = true }):narrow(1, 0, n)
  local found = {}
  for i, numbers in ipairs(order:tolist()) do
    local wanted, count, ranks = {}, 0, {}
    for _, number in ipairs(type(relevant[i]) == "table" and relevant[i] or { relevant[i] }) do
      check_integer(where, ("relevant: query %d"):format(i), number, 1, scores:size(1))
      if not wanted[number] then wanted[number], count = true, count + 1 end
    end
    if count == 0 then fail("%s: relevant: query %d has no relevant document", where, i) end
    for rank, number in ipairs(numbers) do
      if wanted[number + 1] then ranks[#ranks + 1] = rank end
    end
    found[i] = { ranks = ranks, count = count }
  end
  return found
end

local function mean_of(where, scores, relevant, k, value)
  local sum, found = 0, ranks_of(where, scores, relevant, k)
  for _, each in ipairs(found) do sum = sum + value(each.ranks, each.count) end
  return sum / #found
end

local function gain(rank) return 1 / (math.log(rank + 1) / math.log(2)) end

-- The value of a query by the ranks of the relevant documents among the first k, and their number.
local function recall(ranks, count) return #ranks / count end

local function reciprocal_rank(ranks) return ranks[1] and 1 / ranks[1] or 0 end

local function gains(ranks, count, k)
  local sum, best = 0, 0
  for _, rank in ipairs(ranks) do sum = sum + gain(rank) end
  for rank = 1, math.min(count, k) do best = best + gain(rank) end
  return sum / best
end

local function new_metric(name, value, default)
  local where = "metrics." .. name
  local options = arguments(where, { k = default })
  return function(scores, relevant, given)
    local k = options(given).k
    return mean_of(where, scores, relevant, k, function(ranks, count)
      return value(ranks, count, k)
    end)
  end
end

local retrieval = {}

retrieval.recall_at_k = registry.define("redco.metrics.recall_at_k", [[
recall_at_k(scores [queries, documents], relevant: list, {k: integer = 10}) -> number
Returns the mean over queries of the fraction of relevant documents that are among the k with the
highest scores. `relevant` has for each query the number of its document, from 1, or a list of
numbers. Of equal scores the earlier document comes first.]], new_metric("recall_at_k", recall, 10))

retrieval.mean_reciprocal_rank = registry.define("redco.metrics.mean_reciprocal_rank", [[
mean_reciprocal_rank(scores [queries, documents], relevant: list, {k: integer = 10}) -> number
Returns the mean over queries of 1 / the rank of the first relevant document, 0 if it is not among the
k with the highest scores (MRR@k). `relevant` is as in `recall_at_k`.]],
new_metric("mean_reciprocal_rank", reciprocal_rank, 10))

retrieval.ndcg_at_k = registry.define("redco.metrics.ndcg_at_k", [[
ndcg_at_k(scores [queries, documents], relevant: list, {k: integer = 10}) -> number
Returns the mean over queries of the normalised discounted cumulative gain of the k documents with the
highest scores: a relevant document at rank r counts 1 / log2(r + 1). `relevant` is as in
`recall_at_k`.]], new_metric("ndcg_at_k", gains, 10))

return retrieval
