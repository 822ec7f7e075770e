--- The losses of proximal policy optimization.
local arguments = require "redco.arguments"
local fail = require "redco.fail"
local native = require "redco.native"
local registry = require "redco.registry"
local torch = require "redco.torch"

local losses = {}

local function check(where, names, o)
  for _, name in ipairs(names) do
    if not torch.is_tensor(o[name]) then
      fail("%s: %s: expected a tensor, got %s", where, name, native.describe(o[name]))
    end
    if table.concat(o[name].shape, ", ") ~= table.concat(o[names[1]].shape, ", ") then
      fail("%s: %s: expected the shape of %s, [%s], got [%s]", where, name, names[1],
        table.concat(o[names[1]].shape, ", "), table.concat(o[name].shape, ", "))
    end
  end
  if o.clip and not (type(o.clip) == "number" and o.clip > 0) then
    fail("%s: clip: expected a number above 0, got %s", where, o.clip)
  end
end

local of_policy = { "log_probs", "old_log_probs", "advantages" }
local policy_options = arguments("rl.policy_loss", { clip = 0.2 }, of_policy)

losses.policy_loss = registry.define("redco.rl.policy_loss", [[
policy_loss{log_probs [...], old_log_probs [...], advantages [...], clip = 0.2} -> loss, metrics
Returns the clipped loss of proximal policy optimization (PPO, arXiv 1707.06347): the mean of
-advantage times the ratio of the probabilities of the actions, now and when they were taken. The
ratio counts no further than 1 - clip or 1 + clip where that makes the loss smaller.

`metrics` has approx_kl, an estimate of the divergence of the old policy from the new one
(http://joschu.net/blog/kl-approx.html), and clip_fraction, the part of the ratios outside of the
clip range.]], function(given)
  local o = policy_options(given)
  check("rl.policy_loss", of_policy, o)
  local log_ratio = o.log_probs - o.old_log_probs
  local ratio = log_ratio:exp()
  local loss = torch.maximum(-o.advantages * ratio,
    -o.advantages * ratio:clamp(1 - o.clip, 1 + o.clip)):mean()
  local metrics = torch.no_grad(function()
    return { approx_kl = (ratio - 1 - log_ratio):mean(),
      clip_fraction = (ratio - 1):abs():gt(o.clip):to(ratio.dtype):mean() }
  end)
  return loss, metrics
end)

local of_value = { "values", "returns" }
local value_options = arguments("rl.value_loss", {}, { "values", "returns", "old_values", "clip" })

losses.value_loss = registry.define("redco.rl.value_loss", [[
value_loss{values [...], returns [...], old_values [...] = nil, clip = nil} -> loss
Returns half of the mean squared error of a critic. With `clip`, a value counts no further than
`clip` from the old value where that makes its error larger, as in the original code of PPO.]],
function(given)
  local o = value_options(given)
  check("rl.value_loss", o.clip and { "values", "returns", "old_values" } or of_value, o)
  local errors = (o.values - o.returns):square()
  if o.clip then
    local near = o.old_values + (o.values - o.old_values):clamp(-o.clip, o.clip)
    errors = torch.maximum(errors, (near - o.returns):square())
  end
  return 0.5 * errors:mean()
end)

return losses
