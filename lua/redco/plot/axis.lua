--- An axis: the range of a list of numbers, its ticks, and the place of a number in it.
local axis = {}

--- Formats a number: 0.0123, 1250, 12.5k, 3M.
function axis.text(number)
  for _, unit in ipairs { { 1e9, "G" }, { 1e6, "M" }, { 1e4, "k", 1e3 } } do
    if math.abs(number) >= unit[1] then
      return ("%.4g%s"):format(number / (unit[3] or unit[1]), unit[2])
    end
  end
  return ("%.4g"):format(number)
end

--- Returns the range of a list of numbers. It is never empty; a single number is in the middle.
function axis.of(numbers)
  local low, high = math.huge, -math.huge
  for _, number in ipairs(numbers) do
    low, high = math.min(low, number), math.max(high, number)
  end
  if low == high then
    local margin = low == 0 and 1 or math.abs(low) / 10
    low, high = low - margin, high + margin
  end
  return { low = low, high = high }
end

--- Returns the place of a number: 0 for the lowest, 1 for the highest.
function axis.place(range, number)
  return (number - range.low) / (range.high - range.low)
end

--- Returns about `n` ticks, multiples of 1, 2 or 5 times a power of ten.
function axis.ticks(range, n)
  local rough = (range.high - range.low) / n
  local power = 10 ^ math.floor(math.log10(rough))
  local unit = power * 10
  for _, factor in ipairs { 5, 2, 1 } do
    if factor * power >= rough then unit = factor * power end
  end
  local ticks = {}
  for i = math.ceil(range.low / unit - 1e-9), math.floor(range.high / unit + 1e-9) do
    ticks[#ticks + 1] = i * unit + 0  -- no -0
  end
  return ticks
end

return axis
