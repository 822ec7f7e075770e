--- Draws metrics as a grid of small charts, in SVG.
local axis = require "redco.plot.axis"
local new_svg = require "redco.plot.svg"
local series = require "redco.plot.series"

local charts = {}

local columns, width, height = 3, 380, 240
local left, right, top, bottom = 64, 16, 34, 40
local title_height = 30
local most_points, most_marks = 1000, 30
local grid, black = "#d8d8d8", "#282828"
local colours = {
  train = { line = "#1f6fb4", faint = "#b5d3ea" },
  eval = { line = "#d1571b" },
}

local function range_of(panel)
  local values = {}
  for _, kind in ipairs { "train", "eval" } do
    for _, value in ipairs(panel[kind] and series.shown(panel[kind]) or {}) do
      values[#values + 1] = value
    end
  end
  return axis.of(values)
end

local function draw_chart(canvas, x, y, panel, across)
  local up = range_of(panel)
  local function place_x(step)
    return x + left + axis.place(across, step) * (width - left - right)
  end
  local function place_y(value)
    return y + height - bottom - axis.place(up, value) * (height - top - bottom)
  end
  local function draw_curve(steps, values, colour)
    steps, values = series.thinned(steps, values, most_points)
    local points = {}
    for i, step in ipairs(steps) do points[i] = { place_x(step), place_y(values[i]) } end
    if #points == 1 then points[2] = { points[1][1] + 2, points[1][2] } end
    canvas:curve(points, colour, y + top, y + height - bottom)
  end
  canvas:text(x + left, y + top - 12, panel.name, "start", black)
  for _, value in ipairs(axis.ticks(up, 5)) do
    canvas:line(x + left, place_y(value), x + width - right, place_y(value), grid)
    canvas:text(x + left - 6, place_y(value) + 4, axis.text(value), "end", black)
  end
  for _, step in ipairs(axis.ticks(across, 5)) do
    canvas:line(place_x(step), y + height - bottom, place_x(step), y + height - bottom + 4, grid)
    canvas:text(place_x(step), y + height - bottom + 17, axis.text(step), "middle", black)
  end
  canvas:text(x + (left + width - right) / 2, y + height - 8, "step", "middle", black)
  local train, eval = panel.train, panel.eval
  local legend = x + width - right
  local function add_legend(kind, value)
    local text = (train and eval and kind .. " " or "") .. axis.text(value)
    canvas:text(legend, y + top - 12, text, "end", colours[kind].line)
    legend = legend - 90
  end
  if train then
    local means = series.smoothed(train)
    if means then draw_curve(train.steps, train.values, colours.train.faint) end
    draw_curve(train.steps, means or train.values, colours.train.line)
    add_legend("train", (means or train.values)[#train.values])
  end
  if eval then
    draw_curve(eval.steps, eval.values, colours.eval.line)
    for i = 1, #eval.steps <= most_marks and #eval.steps or 0 do
      local place = axis.place(up, eval.values[i])
      if place >= 0 and place <= 1 then
        canvas:mark(place_x(eval.steps[i]), place_y(eval.values[i]), colours.eval.line)
      end
    end
    add_legend("eval", eval.values[#eval.values])
  end
end

--- Returns the bytes of an SVG file with a chart of each metric, under a title.
function charts.draw(chosen, title)
  local panels, steps = series.panels(chosen), {}
  for _, one in ipairs(chosen) do
    steps[#steps + 1], steps[#steps + 2] = one.steps[1], one.steps[#one.steps]
  end
  local n_columns = math.min(columns, #panels)
  local canvas = new_svg(n_columns * width,
    title_height + math.ceil(#panels / n_columns) * height)
  canvas:text(n_columns * width / 2, 22, title, "middle", black)
  for i, panel in ipairs(panels) do
    draw_chart(canvas, (i - 1) % n_columns * width,
      title_height + math.floor((i - 1) / n_columns) * height, panel, axis.of(steps))
  end
  return canvas:bytes()
end

return charts
