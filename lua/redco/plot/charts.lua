--- Draws series as a grid of small charts, on any canvas. A canvas has the methods
--- `line(x1, y1, x2, y2, colour)`, `curve(points, colour)`, `text(x, y, text, anchor)` and
--- `bytes()`; x grows to the right, y downwards.
local axis = require "redco.plot.axis"
local series = require "redco.plot.series"

local charts = {}

local columns, width, height = 3, 380, 230
local left, right, top, bottom = 64, 16, 34, 30
local most_points = 1000
local grid, ink = "#d8d8d8", "#1f6fb4"

local function draw_chart(canvas, x, y, one)
  local steps, values = series.thinned(one.steps, one.values, most_points)
  local across, up = axis.of(steps), axis.of(values)
  local function place_x(step)
    return x + left + axis.place(across, step) * (width - left - right)
  end
  local function place_y(value)
    return y + height - bottom - axis.place(up, value) * (height - top - bottom)
  end
  canvas:text(x + left, y + top - 12, one.name, "start")
  canvas:text(x + width - right, y + top - 12, axis.text(one.values[#one.values]), "end")
  for _, value in ipairs(axis.ticks(up, 4)) do
    canvas:line(x + left, place_y(value), x + width - right, place_y(value), grid)
    canvas:text(x + left - 6, place_y(value) + 4, axis.text(value), "end")
  end
  for _, step in ipairs(axis.ticks(across, 4)) do
    canvas:line(place_x(step), y + height - bottom, place_x(step), y + height - bottom + 4, grid)
    canvas:text(place_x(step), y + height - bottom + 18, axis.text(step), "middle")
  end
  local points = {}
  for i, step in ipairs(steps) do points[i] = { place_x(step), place_y(values[i]) } end
  if #points == 1 then points[2] = { points[1][1] + 2, points[1][2] } end
  canvas:curve(points, ink)
end

--- Returns the bytes of a file with a chart of each series.
function charts.draw(all, new_canvas)
  local n_columns = math.min(columns, #all)
  local canvas = new_canvas(n_columns * width, math.ceil(#all / n_columns) * height)
  for i, one in ipairs(all) do
    draw_chart(canvas, (i - 1) % n_columns * width, math.floor((i - 1) / n_columns) * height, one)
  end
  return canvas:bytes()
end

return charts
