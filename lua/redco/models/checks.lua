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
--- may have infinity. Collective if tensors are sharded. Reads each value once, and needs no tensor
--- of the same size.
function checks.finite(path, names, tensors, may_be_infinite)
  local extremes, checked = {}, {}
  for _, name in ipairs(names) do
    if tensors[name]:numel() > 0 then
      checked[#checked + 1] = name
      for _, extreme in ipairs { torch.no_grad(torch.aminmax, tensors[name]) } do
        extremes[#extremes + 1] = extreme:double()
      end
    end
  end
  if #checked == 0 then return end
  extremes = torch.stack(extremes):full():view { -1, 2 }:tolist()
  for i, name in ipairs(checked) do
    local least, most = unpack(extremes[i])
    local found
    if least ~= least or most ~= most then
      found = "NaN"
    elseif (least == -math.huge or most == math.huge) and not (may_be_infinite or {})[name] then
      found = "infinity"
    end
    if found then
      fail("%s: the weight %s has %s: the file is damaged, or the training that wrote it diverged",
        path, name, found)
    end
  end
end

return checks
