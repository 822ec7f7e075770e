--- Kinds of norms. Each has `add(add, name, sizes)`, which declares its parameters, and
--- `apply(params, name, x, eps)`, which normalises the last dimension of x.
local blocks = require "redco.models.layers.blocks"
local torch = require "redco.torch"

local norms = {}

-- Declares a weight, and a bias of zeros if `has_bias`.
local function adder(init, has_bias)
  return function(add, name, sizes)
    add(name .. ".weight", sizes, init)
    if has_bias then add(name .. ".bias", sizes, blocks.zeros) end
  end
end

-- Computes f(x, weight, bias) in float32 at least.
local function widened(f)
  return function(params, name, x, eps)
    local weight, bias, dtype = params[name .. ".weight"], params[name .. ".bias"], x.dtype
    if dtype == "float64" then return f(x, weight, bias, eps) end
    local y = f(x:float(), weight:float(), bias and bias:float(), eps)
    return y.dtype == dtype and y or y:to(dtype)
  end
end

norms.rms = { add = adder(blocks.ones), apply = blocks.rms_norm }

--- An RMS norm without parameters.
norms.rms_plain = { add = function() end, apply = function(_, _, x, eps)
  return torch.rms_norm(x, { x:size(-1) }, nil, eps)
end }

--- An RMS norm whose weight is stored as its distance from 1.
norms.rms_from_one = { add = adder(blocks.zeros), apply = widened(function(x, weight, _, eps)
  return torch.rms_norm(x, weight.shape, weight + 1, eps)
end) }

norms.layer = { add = adder(blocks.ones, true), apply = blocks.layer_norm }

norms.layer_without_bias = { add = adder(blocks.ones), apply = blocks.layer_norm }

--- A layer norm without parameters.
norms.layer_plain = { add = function() end, apply = function(_, _, x, eps)
  return torch.layer_norm(x, { x:size(-1) }, nil, nil, eps)
end }

--- A layer norm whose weight is stored as its distance from 1.
norms.layer_from_one = { add = adder(blocks.zeros, true), apply = widened(
  function(x, weight, bias, eps) return torch.layer_norm(x, weight.shape, weight + 1, bias, eps) end
) }

--- A layer norm of each head [..., H, D], which has weights of its own: [H, D].
norms.layer_of_heads = { add = adder(blocks.ones), apply = widened(function(x, weight, _, eps)
  return torch.layer_norm(x, { x:size(-1) }, nil, nil, eps) * weight
end) }

return norms
