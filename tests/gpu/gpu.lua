--- The common parts of the specs here. Each compares a GPU with the CPU, or with figures of Hugging
--- Face's models, and is skipped where there is no GPU. With REDCO_GPU_DRY_RUN=1 the CPU takes the
--- GPU's place there, which shows that a spec itself is sound.
local redco = require "redco"
local torch = redco.torch

local gpu = { is_there = torch.cuda.is_available() }

if not gpu.is_there and os.getenv "REDCO_GPU_DRY_RUN" ~= "1" then
  print "skipped: there is no GPU (REDCO_GPU_DRY_RUN=1 tries the spec on the CPU)"
  os.exit(77)
end

gpu.device = gpu.is_there and "cuda" or "cpu"

--- A copy of a tree on a device; floating-point leaves record gradients if `tracked`.
function gpu.on(device, tree, tracked)
  return redco.tree.map(function(leaf)
    if not torch.is_tensor(leaf) then return leaf end
    local copy = leaf:detach():to { device = device, copy = true }
    return tracked and copy:is_floating_point() and copy:requires_grad_() or copy
  end, tree)
end

--- The norm of the difference by the norm of `expected`.
function gpu.error_of(actual, expected)
  local a, b = actual:detach():cpu():double(), expected:detach():cpu():double()
  local size = b:norm():item()
  return (a - b):norm():item() / (size > 0 and size or 1)
end

--- Fails unless that is at most `bound`; NaN never passes.
function gpu.expect_near(what, actual, expected, bound)
  local off = type(actual) == "number" and math.abs(actual / expected - 1)
    or gpu.error_of(actual, expected)
  if off ~= off or off > bound then
    error(("%s: off by %.3g, expected at most %.3g"):format(what, off, bound), 2)
  end
end

return gpu
