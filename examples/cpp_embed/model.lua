-- What the program leaves to a script: the model. The program gives it `log`, and calls `forward`
-- and `fill_with_labels`.
local redco = require "redco"
local torch, nn = redco.torch, redco.nn

rawset(_G, "params", nn.MLP { 2, 32, 2 })

rawset(_G, "forward", function(p, points)
  local logits = nn.mlp(p, points, { activation = torch.tanh })
  return logits  -- no tail call: errors name this file
end)

-- Writes into a tensor that the program holds.
rawset(_G, "fill_with_labels", function(points, labels)
  labels:copy_(points:pow(2):sum(-1):gt(1):long())
  log(("%d of %d points are outside the circle"):format(labels:sum():item(), #points))
end)
