--- Rounds weights to int4 by what their layers read: GPTQ (arXiv 2210.17323) and AWQ (arXiv
--- 2306.00978). `hessian` is the sum of x x^T of the inputs x, [in, in], and the error of a rounded
--- weight is the sum of the squares of what its outputs are off.
local blocks = require "redco.quant.blocks"
local torch = require "redco.torch"

local rounding = {}

-- The columns that GPTQ updates before the rest of the matrix.
local n_at_once = 128

-- Scales and zeros of groups [..., g] that span the least to the largest number and contain 0.
local function grid_of(groups)
  local low, high = groups:amin(-1):clamp_max(0), groups:amax(-1):clamp_min(0)
  local scales = (high - low) / 15
  return scales, (-low / scales:clamp_min(1e-30)):round():clamp(0, 15)
end

local function numbers_of(w, scales, zeros)
  return ((w / scales:clamp_min(1e-30)):round() + zeros):clamp(0, 15)
end

-- Returns the rounded values of numbers [out, in], with scales and zeros [out, groups].
local function values_of(rounded)
  local q = rounded.numbers
  local g = q:size(1) / rounded.scales:size(1)
  return (q - rounded.zeros:repeat_interleave(g, 1)) * rounded.scales:repeat_interleave(g, 1)
end

-- Each number to its nearest.
local function to_nearest(w, group_size)
  local groups = w:view { w:size(0), -1, group_size }
  local scales, zeros = grid_of(groups)
  local q = numbers_of(groups, scales:unsqueeze(-1), zeros:unsqueeze(-1))
  return { numbers = q:view(w.shape), scales = scales, zeros = zeros }
end

-- The upper Cholesky factor of the inverse of the damped matrix.
local function inverse_factor(hessian, damping)
  local n = hessian:size(0)
  local mean = hessian:diagonal():mean()
  local damped = hessian + torch.eye(n, { dtype = hessian.dtype }) * (mean * damping)
  local inverse = torch.cholesky_inverse(torch.linalg_cholesky(damped))
  return torch.linalg_cholesky(inverse, { upper = true })
end

local function gptq(w, hessian, _, o)
  local n_in, columns = w:size(1), {}
  local is_dead = hessian:diagonal():eq(0)
  hessian = hessian + torch.diag(is_dead:to(hessian.dtype))
  w = w:masked_fill(is_dead, 0)
  local factor, scales, zeros = inverse_factor(hessian, o.damping), {}, {}
  for first = 0, n_in - 1, n_at_once do
    local n = math.min(n_at_once, n_in - first)
    local part, square = w:narrow(1, first, n), factor:narrow(0, first, n):narrow(1, first, n)
    local errors = {}
    for i = 0, n - 1 do
      if (first + i) % o.group_size == 0 then
        -- Groups may reach into columns whose errors are not added yet.
        local group = w:narrow(1, first + i, o.group_size)
        scales[#scales + 1], zeros[#zeros + 1] = grid_of(group)
      end
      local scale, zero = scales[#scales], zeros[#zeros]
      local column = part:select(1, i)
      local q = numbers_of(column, scale, zero)
      columns[#columns + 1] = q
      errors[i + 1] = (column - (q - zero) * scale) / square[i][i]
      part:narrow(1, i, n - i):sub_(errors[i + 1]:unsqueeze(1)
        * square:select(0, i):narrow(0, i, n - i))
    end
    local rest = n_in - first - n
    if rest > 0 then
      w:narrow(1, first + n, rest):sub_(torch.stack(errors, 1):matmul(
        factor:narrow(0, first, n):narrow(1, first + n, rest)))
    end
  end
  return { numbers = torch.stack(columns, 1), scales = torch.stack(scales, 1),
    zeros = torch.stack(zeros, 1) }
end

-- The sum of squares of the outputs of (w - rounded) for the inputs.
local function error_of(w, rounded, hessian)
  local off = rounding.values(rounded) - w
  return (off:matmul(hessian) * off):sum():item()
end

-- Searches the best a for input scales s = magnitude^a. W s is rounded, and layers read x / s.
local function awq(w, hessian, magnitude, o)
  local best, least
  for step = 0, 19 do
    local s = magnitude:pow(step / 20):clamp_min(1e-4)
    s = s / (s:max() * s:min()):sqrt()
    local rounded = to_nearest(w * s, o.group_size)
    if step > 0 then rounded.input_scale = 1 / s end
    local off = error_of(w, rounded, hessian)
    if not least or off < least then best, least = rounded, off end
  end
  return best
end

local methods = { gptq = gptq, awq = awq }

--- Returns the values of a rounded weight as its layer computes with them.
function rounding.values(rounded)
  local values = values_of(rounded)
  return rounded.input_scale and values * rounded.input_scale or values
end

--- Rounds a weight [out, in] in float32. `magnitude` [in] is the mean of |x|; o: method, group_size
--- and damping. Returns blocks of int4, the factor [in] of the inputs or nil, and the errors of
--- this and of rounding to the nearest, as parts of the sum of squares of the outputs.
function rounding.round(where, w, hessian, magnitude, o)
  local nearest = to_nearest(w, o.group_size)
  local rounded = methods[o.method](w:clone(), hessian, magnitude, o)
  local off, off_nearest = error_of(w, rounded, hessian), error_of(w, nearest, hessian)
  local is_better = off < off_nearest  -- false for NaN
  if not is_better then rounded, off = nearest, off_nearest end
  local whole = math.max((w:matmul(hessian) * w):sum():item(), 1e-30)
  return blocks.of_nibbles(rounded.numbers:to "uint8", rounded.zeros, rounded.scales, where),
    rounded.input_scale, off / whole, off_nearest / whole
end

return rounding
