--- Advantages of tokens from a critic of a language model.
local arguments = require "redco.arguments"
local checks = require "redco.preference.checks"
local fail = require "redco.fail"
local registry = require "redco.registry"
local torch = require "redco.torch"

local where = "rl.language.gae"
local options = arguments(where,
  { gamma = 1, lambda = 0.95, whiten_rewards = false, whiten = true },
  { "rewards", "values", "labels" })

-- Divides the distances of values from their mean by their standard deviation. `mean_after` is the
-- mean of the result, by default that of the values.
local function whitened(values, mask, count, mean_after)
  local mean = (values * mask):sum() / count
  local variance = ((values - mean):square() * mask):sum() / (count - 1)
  return ((values - mean) * (variance + 1e-8):rsqrt() + (mean_after or mean)) * mask
end

local function of_tokens(o)
  local is_counted = o.labels:ne(-100)
  local mask = is_counted:to(o.values.dtype)
  local rewards, values, count = o.rewards:to(mask.dtype) * mask, o.values * mask, mask:sum()
  if o.whiten_rewards then rewards = whitened(rewards, mask, count) end
  local n, length = values:size(0), values:size(1)
  local none = torch.zeros({ n }, { dtype = mask.dtype, device = values.device })
  local columns, last, next_value = {}, none, none
  -- Tokens that do not count, such as the tokens of tools, are skipped.
  for t = length - 1, 0, -1 do
    local is_step, value = is_counted:select(1, t), values:select(1, t)
    local delta = rewards:select(1, t) + o.gamma * next_value - value
    last = torch.where(is_step, delta + o.gamma * o.lambda * last, last)
    next_value = torch.where(is_step, value, next_value)
    columns[t + 1] = last
  end
  local advantages = torch.stack(columns, 1) * mask
  local returns = advantages + values
  if o.whiten then advantages = whitened(advantages, mask, count, 0) end
  return advantages, returns
end

return registry.define("redco.rl.language.gae", [[
gae{values [n, length], rewards [n, length], labels [n, length], gamma: number = 1, lambda: number = 0.95,
  whiten_rewards: boolean = false, whiten: boolean = true} -> advantages [n, length], returns [n, length]
Returns the advantages of tokens by generalized advantage estimation (arXiv 1506.02438), and the
returns, which are the targets of the critic: advantages + values, before they are whitened. Both are
0 at labels of -100; such tokens are skipped, as if those around them were adjacent.
  values: what the critic expects before each token
  rewards: of each token
  gamma, lambda: the discount, and the decay of later differences, from 0 to 1
  whiten_rewards: divides rewards by their standard deviation over all tokens that count
  whiten: sets the mean of the advantages of all tokens that count to 0, and their standard deviation
    to 1]],
function(given)
  local o = options(given)
  checks.tensor(where, "values", o.values, "[n, length]")
  checks.wide(where, "values", o.values)
  checks.same(where, "rewards", o.rewards, o.values, "values")
  checks.same(where, "labels", o.labels, o.values, "values")
  checks.number(where, o, "gamma", 0, 1)
  checks.number(where, o, "lambda", 0, 1)
  if (o.whiten or o.whiten_rewards) and o.labels:ne(-100):sum():item() < 2 then
    fail("%s: labels: fewer than 2 tokens count, and whitening compares them: use whiten = false",
      where)
  end
  return torch.no_grad(of_tokens, o)
end)
