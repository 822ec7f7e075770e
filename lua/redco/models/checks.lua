--- Checks of weights that were read from a file.
local fail = require "redco.fail"
local torch = require "redco.torch"

local checks = {}

local is_number = { float64 = true, float32 = true, float16 = true, bfloat16 = true }

--- Raises an error for a weight that is not floating-point. Quantized models store integers with
--- another meaning.
function checks.dtype(path, name, dtype)
  if not is_number[dtype] then
    fail("%s: the weight %s is %s, expected float32, float16, bfloat16 or float64: quantized "
      .. "weights are not supported", path, name, dtype)
  end
end

--- Raises an error for NaN or infinity in the tensors of these names; those in `may_be_infinite`
--- may have infinity. Collective if tensors are sharded. Reads each value once.
function checks.finite(path, names, tensors, may_be_infinite)
  if #names == 0 then return end
  local sums = {}
  for i, name in ipairs(names) do
    -- A sum propagates NaN and infinity, and needs no tensor of the same size. It may overflow.
    sums[i] = torch.no_grad(torch.sum, tensors[name]):double()
  end
  local is_finite = torch.stack(sums):isfinite():full():tolist()
  for i, name in ipairs(names) do
    local found
    if not is_finite[i] and tensors[name]:isnan():any():item() then
      found = "NaN"
    elseif not is_finite[i] and not (may_be_infinite or {})[name]
      and tensors[name]:isinf():any():item() then
      found = "infinity"
    end
    if found then
      fail("%s: the weight %s has %s: the file is damaged, or the training that wrote it diverged",
        path, name, found)
    end
  end
end

return checks
