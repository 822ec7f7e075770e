--- Draws series as text charts, one below the other.
local axis = require "redco.plot.axis"
local clip = require "redco.plot.clip"
local series = require "redco.plot.series"

local terminal = {}

local rows, label_width = 8, 9

-- The number of dots in one character, across and down.
local braille = { across = 2, down = 4, axis = "│", tick = "┤" }
local plain = { across = 1, down = 1, axis = "|", tick = "+" }

-- The bit of each dot in a character of Unicode's Braille patterns, by column and row.
local bits = { [0] = { [0] = 1, 2, 4, 64 }, { [0] = 8, 16, 32, 128 } }

function braille.character(dots)
  local code = 0
  for x = 0, 1 do
    for y = 0, 3 do
      if dots[x * 4 + y] then code = code + bits[x][y] end
    end
  end
  -- U+2800 + code in UTF-8
  return code == 0 and " " or string.char(0xE2, 0xA0 + math.floor(code / 64), 0x80 + code % 64)
end

function plain.character(dots) return dots[0] and "*" or " " end

-- Draws a line between two points of a grid of dots, a table by row and column.
local function draw_line(dots, x1, y1, x2, y2)
  local n = math.max(math.abs(x2 - x1), math.abs(y2 - y1), 1)
  for i = 0, n do
    local x = math.floor(x1 + (x2 - x1) * i / n + 0.5)
    local y = math.floor(y1 + (y2 - y1) * i / n + 0.5)
    dots[y] = dots[y] or {}
    dots[y][x] = true
  end
end

local function dots_of(one, across, up, n_across, n_down)
  local dots, points = {}, {}
  local steps, values = series.thinned(one.steps, one.values, 4 * n_across)
  for i, step in ipairs(steps) do
    points[i] = { axis.place(across, step) * (n_across - 1),
      (1 - axis.place(up, values[i])) * (n_down - 1) }
  end
  for _, piece in ipairs(clip(points, 0, n_down - 1)) do
    local before_x, before_y
    for _, point in ipairs(piece) do
      local x, y = math.floor(point[1] + 0.5), math.floor(point[2] + 0.5)
      draw_line(dots, before_x or x, before_y or y, x, y)
      before_x, before_y = x, y
    end
  end
  return dots
end

local function row_of(style, dots, row, columns)
  local characters = {}
  for column = 0, columns - 1 do
    local cell = {}
    for x = 0, style.across - 1 do
      for y = 0, style.down - 1 do
        local line = dots[row * style.down + y]
        cell[x * 4 + y] = line and line[column * style.across + x]
      end
    end
    characters[#characters + 1] = style.character(cell)
  end
  return (table.concat(characters):gsub(" +$", ""))
end

local function chart(one, width, style)
  local columns = math.max(10, width - label_width - 2)
  local across, up = axis.of(one.steps), axis.of(series.shown(one))
  local dots = dots_of(one, across, up, columns * style.across, rows * style.down)
  local lines = { ("%s: %s at step %s"):format(one.name, axis.text(one.values[#one.values]),
    axis.text(one.steps[#one.steps])) }
  for row = 0, rows - 1 do
    local label = row == 0 and axis.text(up.high) or row == rows - 1 and axis.text(up.low) or ""
    lines[#lines + 1] = ("%" .. label_width .. "s %s%s"):format(label,
      label == "" and style.axis or style.tick, row_of(style, dots, row, columns))
  end
  local first, last = axis.text(across.low), axis.text(across.high)
  local gap = math.max(6, columns - #first - #last)
  local before = math.floor((gap - #"step") / 2)
  lines[#lines + 1] = (" "):rep(label_width + 2) .. first .. (" "):rep(before) .. "step"
    .. (" "):rep(gap - before - #"step") .. last
  return table.concat(lines, "\n") .. "\n"
end

--- Draws a chart of each series, `width` characters wide, with Braille dots or only ASCII.
function terminal.draw(all, width, with_braille)
  local texts = {}
  for i, one in ipairs(all) do texts[i] = chart(one, width, with_braille and braille or plain) end
  return table.concat(texts, "\n")
end

return terminal
