--- `redco-lua plan --out`: a picture of the memory of a device during a step.
local axis = require "redco.plot.axis"
local picture = require "redco.plot.picture"
local new_svg = require "redco.plot.svg"

local width, height = 760, 380
local left, right, top, bottom = 64, 190, 44, 44
local grid, black, orange = "#d8d8d8", "#282828", "#d1571b"

-- The kinds from the bottom up, and their colours.
local kinds = {
  { "parameters", "#1f6fb4" }, { "states", "#4c9f70" }, { "gradients", "#8856a7" },
  { "gathered", "#7fb3d5" }, { "activations", "#e0a030" }, { "temporaries", "#909090" },
  { "collective buffers", "#c0504d" },
}

local function sum_of(moment)
  local sum = 0
  for _, bytes in pairs(moment) do sum = sum + bytes end
  return sum
end

local function unit_of(most)
  if most >= 2 ^ 30 then return "GiB", 2 ^ 30 end
  if most >= 2 ^ 20 then return "MiB", 2 ^ 20 end
  return "KiB", 2 ^ 10
end

-- Paints the moments of each kind on top of those below it.
local function paint(canvas, moments, place_x, place_y)
  local below = {}
  for i = 1, #moments do below[i] = 0 end
  for _, kind in ipairs(kinds) do
    local upper, lower = {}, {}
    for i, moment in ipairs(moments) do
      local from, to = below[i], below[i] + (moment[kind[1]] or 0)
      for _, x in ipairs { place_x(i - 1), place_x(i) } do
        upper[#upper + 1], lower[#lower + 1] = { x, place_y(to) }, { x, place_y(from) }
      end
      below[i] = to
    end
    canvas:area(upper, lower, kind[2])
  end
end

local function legend(canvas, moments)
  local y = top + 10
  for i = #kinds, 1, -1 do
    local name, colour = kinds[i][1], kinds[i][2]
    local is_used = false
    for _, moment in ipairs(moments) do is_used = is_used or (moment[name] or 0) > 0 end
    if is_used then
      canvas:mark(width - right + 20, y - 4, colour)
      canvas:text(width - right + 30, y, name, "start", black)
      y = y + 20
    end
  end
end

--- Writes the picture `out`, whose name ends in .svg or .png, of a planned layout with a timeline.
--- `capacity`: the bytes of the device, of which the driver's and the allocator's part is shown as
--- not available.
return function(layout, title, capacity, out)
  picture.check(out, "plan")
  if not layout.timeline then error("plan: --out: no step was planned in this row", 0) end
  local moments, most = layout.timeline.moments, 0
  for _, moment in ipairs(moments) do most = math.max(most, sum_of(moment)) end
  local available = capacity - layout.memory.reserved - layout.memory.fragmentation
  local shows_capacity = available > 0 and available < 3 * most
  local unit, factor = unit_of(most)
  local up = axis.of { 0, math.max(most, shows_capacity and available or 0) / factor }
  local duration = layout.timeline.seconds * #moments
  local canvas = new_svg(width, height)
  local function place_x(i) return left + i / #moments * (width - left - right) end
  local function place_y(bytes)
    return height - bottom - axis.place(up, bytes / factor) * (height - top - bottom)
  end
  canvas:text(left, 22, title, "start", black)
  for _, value in ipairs(axis.ticks(up, 6)) do
    local y = place_y(value * factor)
    canvas:line(left, y, width - right, y, grid)
    canvas:text(left - 6, y + 4, axis.text(value), "end", black)
  end
  canvas:text(left - 6, top - 8, unit, "end", black)
  paint(canvas, moments, place_x, place_y)
  if shows_capacity then
    canvas:line(left, place_y(available), width - right, place_y(available), orange)
    canvas:text(width - right - 4, place_y(available) - 5, "available", "end", orange)
  end
  for i = 0, 4 do
    local seconds = duration * i / 4
    canvas:text(place_x(#moments * i / 4), height - bottom + 17, axis.text(seconds), "middle",
      black)
  end
  canvas:text((left + width - right) / 2, height - 8, "seconds of the step, as planned", "middle",
    black)
  legend(canvas, moments)
  picture.write(canvas:bytes(), out, "plan")
end
