--- Cuts the parts of a curve that are above or below the frame of a chart.

-- The point at which the line from `a` to `b`, { x, y }, crosses the height y.
local function crossing(a, b, y)
  return { a[1] + (b[1] - a[1]) * (y - a[2]) / (b[2] - a[2]), y }
end

--- Returns the pieces of a curve, lists of points { x, y }, whose y is between low and high. Points
--- are added where the curve crosses the frame. A piece has one point or more.
return function(points, low, high)
  local pieces, piece = {}, nil
  local function add(point)
    if not piece then
      piece = {}
      pieces[#pieces + 1] = piece
    end
    piece[#piece + 1] = point
  end
  for i, point in ipairs(points) do
    local before = points[i - 1]
    local is_inside = point[2] >= low and point[2] <= high
    if before then
      local crossings = {}
      for _, y in ipairs { low, high } do
        if (before[2] - y) * (point[2] - y) < 0 then
          crossings[#crossings + 1] = crossing(before, point, y)
        end
      end
      if crossings[2] and crossings[2][1] < crossings[1][1] then
        crossings[1], crossings[2] = crossings[2], crossings[1]
      end
      for _, each in ipairs(crossings) do add(each) end
      if crossings[1] and not is_inside then piece = nil end
    end
    if is_inside then add(point) else piece = nil end
  end
  return pieces
end
