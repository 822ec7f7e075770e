--- The loss of reward models.
local arguments = require "redco.arguments"
local checks = require "redco.preference.checks"
local registry = require "redco.registry"
local torch = require "redco.torch"
local widened = require "redco.nn.widened"

local where = "preference.reward"
local options = arguments(where, {}, { "rewards", "margin", "center_rewards_coefficient" })

return registry.define("redco.preference.reward", [[
reward{rewards [pairs, 2], margin [pairs] = nil, center_rewards_coefficient: number = nil} -> loss, n, metrics
Computes the loss of a reward model by the probabilities of Bradley and Terry (1952): the mean of
-log(sigmoid(chosen - rejected - margin)). Returns what a loss_fn returns: the loss, the number of
pairs, and trl's metrics accuracy, margin, min_reward, mean_reward and max_reward. Least and greatest
rewards are means over micro-batches.
  rewards: what the model gives to chosen and rejected sequences
  margin: by how much the chosen reward should be greater
  center_rewards_coefficient: the factor of the mean square of chosen + rejected, which is added, so
    that rewards are near 0 (arXiv 2312.09244)]],
function(given)
  local o = options(given)
  checks.tensor(where, "rewards", o.rewards, "[pairs, 2]")
  local all = widened(o.rewards)
  local chosen, rejected = all:select(1, 0), all:select(1, 1)
  local margins = chosen - rejected
  local wanted = margins
  if o.margin ~= nil then
    checks.same(where, "margin", o.margin, chosen, "rewards of one kind")
    wanted = margins - o.margin
  end
  local loss = torch.softplus(-wanted):mean()
  if o.center_rewards_coefficient ~= nil then
    checks.number(where, o, "center_rewards_coefficient", 0, math.huge)
    loss = loss + o.center_rewards_coefficient * (chosen + rejected):square():mean()
  end
  local rewards = all:detach()
  return loss, o.rewards:size(0), {
    accuracy = margins:gt(0):to(rewards.dtype):mean(), margin = margins:detach():mean(),
    min_reward = rewards:min(), mean_reward = rewards:mean(), max_reward = rewards:max(),
  }
end)
