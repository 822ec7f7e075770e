--- Advantages of samples over others of the same prompt.
local arguments = require "redco.arguments"
local checks = require "redco.preference.checks"
local fail = require "redco.fail"
local registry = require "redco.registry"
local torch = require "redco.torch"

local where = "rl.language.advantages"
local options = arguments(where, { kind = "grpo" })

local epsilon = 1e-4  -- as trl's; a group without signal has advantages of 0

local function centred(r) return r - r:mean(1, true) end

local function without_own(r)
  return r - (r:sum(1, true) - r) / (r:size(1) - 1)
end

-- Rows: functions of rewards [groups, n]. Those with `of_group` compare samples of one prompt.
local kinds = {
  grpo = { of_group = true, f = function(r)
    return centred(r) / (r:std({ 1 }, { keepdim = true }) + epsilon)
  end },
  grpo_batch = { of_group = true, f = function(r) return centred(r) / (r:std() + epsilon) end },
  dr_grpo = { of_group = true, f = centred },
  rloo = { of_group = true, f = without_own },
  reinforce_plus_plus = { f = function(r) return (r - r:mean()) / (r:std() + epsilon) end },
  reinforce_plus_plus_baseline = { of_group = true, f = function(r)
    local a = centred(r)
    return (a - a:mean()) / (a:std() + epsilon)
  end },
}

return registry.define("redco.rl.language.advantages", [[
advantages(rewards [prompts, n], {kind = "grpo"}) -> advantages [prompts, n]
Returns the advantages of n samples of each prompt. Standard deviations are those of a sample, and
are increased by 1e-4.
  kind: "grpo" (arXiv 2402.03300): minus the mean of the group, divided by its standard deviation;
    "grpo_batch": divided by that of all rewards (trl's scale_rewards = "batch"); "dr_grpo" (arXiv
    2503.20783): not divided; "rloo" (arXiv 2402.14740): minus the mean of the others of the group;
    "reinforce_plus_plus" (arXiv 2501.03262): minus the mean of all, divided by their standard
    deviation, for which n may be 1; "reinforce_plus_plus_baseline": minus the mean of the group, and
    then so]],
function(rewards, given)
  local o = options(given)
  checks.tensor(where, "rewards", rewards, "[prompts, n]")
  local row = checks.row(where, "kind", kinds, o.kind)
  if row.of_group and rewards:size(1) < 2 then
    fail("%s: rewards: kind = \"%s\" compares the samples of a prompt, and there is 1 of each: "
      .. "sample 2 or more, or use kind = \"reinforce_plus_plus\"", where, o.kind)
  end
  if rewards:numel() < 2 then
    fail("%s: rewards: expected at least 2 rewards to compare, got 1", where)
  end
  return torch.no_grad(row.f, rewards)
end)
