--- A short causal convolution of each channel, with the last inputs as its state.
local torch = require "redco.torch"

--- Convolves x [B, T, C] by weight [C, 1, K] and bias [C], or nil, along T: token t reads those
--- from t - K + 1 on. With a cache, the entry `key` has the K - 1 inputs before x, [B, C, K - 1].
return function(x, weight, bias, cache, key)
  local n = weight:size(2) - 1
  x = x:transpose(1, 2)
  local before = cache and cache:state(key)
  x = before and torch.cat({ before, x }, 2) or torch.constant_pad_nd(x, { n, 0 }, 0)
  if cache and n > 0 then cache:keep(key, x:narrow(2, x:size(2) - n, n)) end
  return torch.conv1d(x, weight, bias, 1, 0, 1, weight:size(0)):transpose(1, 2)
end
