--- Generalized advantage estimation.
local arguments = require "redco.arguments"
local fail = require "redco.fail"
local native = require "redco.native"
local registry = require "redco.registry"
local torch = require "redco.torch"

local where = "rl.gae"
local names = { "rewards", "values", "next_values", "terminated", "truncated" }
local options_of = arguments(where, { gamma = 0.99, lambda = 0.95 }, names)

local function check(o)
  local shape
  for _, name in ipairs(names) do
    local t = o[name]
    if not torch.is_tensor(t) then
      if name == "truncated" and t == nil then break end
      fail("%s: %s: expected a tensor, got %s", where, name, native.describe(t))
    end
    local own = table.concat(t.shape, ", ")
    shape = shape or own
    if own ~= shape or t:dim() == 0 then
      fail("%s: %s: expected the shape of rewards, [steps, ...], got [%s] beside [%s]", where, name,
        own, shape)
    end
  end
  for _, name in ipairs { "gamma", "lambda" } do
    local value = o[name]
    if type(value) ~= "number" or not (value >= 0 and value <= 1) then
      fail("%s: %s: expected a number from 0 to 1, got %s", where, name, value)
    end
  end
end

return registry.define("redco.rl.gae", [[
gae{rewards [steps, ...], values [steps, ...], next_values [steps, ...], terminated [steps, ...], truncated [steps, ...] = nil, gamma = 0.99, lambda = 0.95} -> advantages, returns
Returns the advantages of the actions of a rollout by generalized advantage estimation (arXiv
1506.02438), and the returns, which are advantages + values: the targets of the critic.
  values: what the critic expects of the observation before each step
  next_values: what it expects of the observation after the step: of an episode's last one, before
    the reset. They count unless the episode terminated
  terminated, truncated: booleans or numbers, 1 where an episode ended by its rules or by the time
    limit. No advantage passes an end
  gamma: the discount of each step
  lambda: 0 looks one step ahead, 1 to the end of the episode]], function(given)
  local o = options_of(given)
  check(o)
  return torch.no_grad(function()
    local dtype = o.values.dtype
    local alive = 1 - o.terminated:to(dtype)
    local deltas = o.rewards:to(dtype) + o.gamma * alive * o.next_values - o.values
    if o.truncated then alive = alive * (1 - o.truncated:to(dtype)) end
    local decays = (o.gamma * o.lambda * alive):unbind(0)
    local rows, last = deltas:unbind(0), nil
    for t = #rows, 1, -1 do
      last = last and torch.addcmul(rows[t], decays[t], last) or rows[t]
      rows[t] = last
    end
    local advantages = torch.stack(rows)
    return advantages, advantages + o.values
  end)
end)
