--- `redco-lua plan --scaling`: a picture of how the speed changes with the number of devices.
local axis = require "redco.plot.axis"
local picture = require "redco.plot.picture"
local new_svg = require "redco.plot.svg"

local width, height = 460, 280
local left, right, top, bottom = 64, 20, 56, 44
local grid, grey, black, blue, orange = "#d8d8d8", "#909090", "#282828", "#1f6fb4", "#d1571b"

-- Each chart draws a function of the points; the grey line is the first point that fits.
local function charts_of(unit)
  return {
    { title = unit .. " per second and device",
      value = function(point) return point.rate / point.devices end, has_ideal = true },
    { title = "model FLOPs utilization", value = function(point) return point.mfu end },
  }
end

local function first_of(points)
  for _, point in ipairs(points) do
    if point.rate > 0 then return point end
  end
end

local function range_of(points, chart)
  local values = { 0 }
  for _, point in ipairs(points) do
    if point.rate > 0 then
      values[#values + 1] = chart.value(point)
    end
  end
  return axis.of(values)
end

local function draw_chart(canvas, x, points, chart)
  local across = axis.of { math.log(points[1].devices), math.log(points[#points].devices) }
  local up = range_of(points, chart)
  local function place_x(point)
    return x + left + axis.place(across, math.log(point.devices)) * (width - left - right)
  end
  local function place_y(value)
    return height - bottom - axis.place(up, value) * (height - top - bottom)
  end
  local function draw_curve(value_of, colour, is_marked)
    local places = {}
    for _, point in ipairs(points) do
      if point.rate > 0 then
        local place = { place_x(point), place_y(value_of(point)) }
        places[#places + 1] = place
        if is_marked then canvas:mark(place[1], place[2], colour) end
      end
    end
    if #places > 1 then canvas:curve(places, colour) end
  end
  canvas:text(x + left, top - 12, chart.title, "start", black)
  for _, value in ipairs(axis.ticks(up, 5)) do
    canvas:line(x + left, place_y(value), x + width - right, place_y(value), grid)
    canvas:text(x + left - 6, place_y(value) + 4, axis.text(value), "end", black)
  end
  -- Labels as many numbers of devices as fit.
  local every = math.ceil(#points / 7)
  for i, point in ipairs(points) do
    local foot = height - bottom
    canvas:line(place_x(point), foot, place_x(point), foot + 4, grid)
    if (i - 1) % every == 0 then
      canvas:text(place_x(point), foot + 17, axis.text(point.devices), "middle", black)
    end
    if point.rate <= 0 then canvas:text(place_x(point), foot - 6, "-", "middle", orange) end
  end
  canvas:text(x + (left + width - right) / 2, height - 8, "devices", "middle", black)
  if chart.has_ideal then draw_curve(function() return chart.value(first_of(points)) end, grey) end
  draw_curve(chart.value, blue, true)
end

--- Writes the picture `out`, whose name ends in .svg or .png. `points` are tables with the numbers
--- `devices`, `rate` (`unit` per second of all devices, such as tokens; 0 if nothing fits) and
--- `mfu`. The grey line is perfect scaling; "-" marks numbers of devices on which nothing fits.
return function(points, title, unit, out)
  picture.check(out, "plan")
  if not first_of(points) then
    error("plan: nothing fits on any of these numbers of devices", 0)
  end
  local charts = charts_of(unit)
  local canvas = new_svg(#charts * width, height)
  canvas:text(#charts * width / 2, 22, title, "middle", black)
  for i, chart in ipairs(charts) do draw_chart(canvas, (i - 1) * width, points, chart) end
  picture.write(canvas:bytes(), out, "plan")
end
