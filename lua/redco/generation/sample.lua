--- Draws tokens by their scores.
local fail = require "redco.fail"
local torch = require "redco.torch"

--- Returns a token [n] for each row of scores [n, V], by numbers `draws` [n, 1] in [0, 1),
--- float64. A seed gives the same tokens on CPUs and GPUs.
return function(scores, draws)
  local sums = scores:double():softmax(-1):cumsum(-1)
  local total = sums:narrow(1, -1, 1)
  if total:isnan():any():item() then
    fail "cannot draw a token: scores of the model are NaN or infinite"
  end
  return torch.searchsorted(sums, draws:to(scores.device) * total, { right = true })
    :clamp(0, scores:size(1) - 1):squeeze(1)
end
