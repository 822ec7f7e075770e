--- Perplexity: exp of the mean cross-entropy of the labels.
local arguments = require "redco.arguments"
local fail = require "redco.fail"
local losses = require "redco.nn.losses"
local registry = require "redco.registry"

local perplexity = {}

local perplexity_arguments = arguments("metrics.perplexity", { ignore_index = -100 })
perplexity.perplexity = registry.define("redco.metrics.perplexity", [[
perplexity(logits [..., classes], labels [...], {ignore_index = -100}) -> number
Returns exp of the mean cross-entropy over the labels that are not ignore_index. The labels are
those of `nn.cross_entropy`, already shifted.]], function(logits, labels, options)
  local loss, count = losses.cross_entropy(logits, labels, perplexity_arguments(options))
  if count:item() == 0 then fail("metrics.perplexity: all labels are ignore_index") end
  return math.exp(loss:item())
end)

perplexity.perplexity_from_losses = registry.define("redco.metrics.perplexity_from_losses", [[
perplexity_from_losses(losses, counts) -> number
Returns the perplexity of a corpus from the mean loss and the number of labels of each batch, the
two results of `nn.cross_entropy`.]], function(means, counts)
  if #means == 0 or #means ~= #counts then
    fail("metrics.perplexity_from_losses: expected as many losses as counts, and at least one, "
      .. "got %d and %d", #means, #counts)
  end
  local sum, n_labels = 0, 0
  for i, mean in ipairs(means) do sum, n_labels = sum + mean * counts[i], n_labels + counts[i] end
  if n_labels == 0 then fail("metrics.perplexity_from_losses: all counts are 0") end
  return math.exp(sum / n_labels)
end)

return perplexity
