--- Checks of the arguments of losses.
local fail = require "redco.fail"
local native = require "redco.native"
local torch = require "redco.torch"

local checks = {}

local function listed(shape) return "[" .. table.concat(shape, ", ") .. "]" end

--- Raises an error unless `t` is a tensor of floating-point numbers whose shape is `text`, such as
--- "[pairs, 2]": as many dimensions, and these sizes where they are numbers. None may be 0.
function checks.tensor(where, name, t, text)
  if not torch.is_tensor(t) then
    fail("%s: %s: expected a tensor %s, got %s", where, name, text, native.describe(t))
  end
  local i, fits = 0, true
  for size in text:gmatch "[^%[%], ]+" do
    i = i + 1
    local n = i <= t:dim() and t:size(i - 1) or 0
    fits = fits and n > 0 and (tonumber(size) or n) == n
  end
  if not fits or i ~= t:dim() then
    fail("%s: %s: expected %s, got %s%s", where, name, text, listed(t.shape),
      t:numel() == 0 and ", which has no element" or "")
  end
  checks.floating(where, name, t)
end

local wide = { float32 = true, float64 = true }

--- Raises an error for log-probabilities of 16 bits, whose steps are larger than most differences
--- of log-probabilities.
function checks.wide(where, name, t)
  checks.floating(where, name, t)
  if wide[t.dtype] then return end
  fail("%s: %s: %s is too coarse for log-probabilities; compute_dtype = \"bfloat16\" casts batches,"
    .. " \"autocast:bfloat16\" keeps them in float32", where, name, t.dtype)
end

--- Raises an error for a tensor of integers.
function checks.floating(where, name, t)
  if t.dtype:sub(1, 5) ~= "float" and t.dtype ~= "bfloat16" then
    fail("%s: %s: expected floating-point numbers, got %s", where, name, t.dtype)
  end
end

--- Raises an error unless `t` is a tensor of the shape of `other`, which is named `like`.
function checks.same(where, name, t, other, like)
  if not torch.is_tensor(t) then
    fail("%s: %s: expected a tensor of the shape of %s, %s, got %s", where, name, like,
      listed(other.shape), native.describe(t))
  end
  if listed(t.shape) ~= listed(other.shape) then
    fail("%s: %s: expected the shape of %s, %s, got %s", where, name, like, listed(other.shape),
      listed(t.shape))
  end
end

--- Raises an error unless o[name] is a number from `least` to `most`, or above `least` if
--- `is_above`.
function checks.number(where, o, name, least, most, is_above)
  local value = o[name]
  local fits = type(value) == "number" and value <= most
    and (value > least or value == least and not is_above)
  if not fits then
    fail("%s: %s: expected a number %s %s%s, got %s", where, name,
      is_above and "above" or "from", least, most < math.huge and " to " .. most or "",
      type(value) == "number" and value or native.describe(value))
  end
end

--- Returns rows[name], and raises an error that names the nearest one if there is none.
function checks.row(where, argument, rows, name)
  local row = type(name) == "string" and rows[name]
  if row then return row end
  local names = {}
  for each in pairs(rows) do names[#names + 1] = each end
  table.sort(names)
  local near = type(name) == "string" and native.nearest(name, names)
  fail("%s: %s = %s is not one of %s%s", where, argument, tostring(name), table.concat(names, ", "),
    near and ("; did you mean '%s'?"):format(near) or "")
end

return checks
