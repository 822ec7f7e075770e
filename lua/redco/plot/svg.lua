--- A canvas (charts.lua) that writes an SVG file.
local Svg = {}
Svg.__index = Svg

local function escaped(text)
  return (text:gsub("[&<>]", { ["&"] = "&amp;", ["<"] = "&lt;", [">"] = "&gt;" })
    :gsub("[%z\1-\31]", "?"))
end

function Svg:add(format, ...)
  self.parts[#self.parts + 1] = format:format(...)
end

function Svg:line(x1, y1, x2, y2, colour)
  self:add('<line x1="%.2f" y1="%.2f" x2="%.2f" y2="%.2f" stroke="%s"/>', x1, y1, x2, y2, colour)
end

-- Returns the attribute that hides what is above `top` and below `bottom`.
function Svg:clipped(top, bottom)
  if not top then return "" end
  local id = ("rows_%.0f_%.0f"):format(top, bottom)
  if not self.clips[id] then
    self.clips[id] = true
    self:add('<clipPath id="%s"><rect y="%.2f" width="100%%" height="%.2f"/></clipPath>', id,
      top - 1, bottom - top + 2)
  end
  return (' clip-path="url(#%s)"'):format(id)
end

function Svg:curve(points, colour, top, bottom)
  local places, far = {}, 1e5
  for i, point in ipairs(points) do
    places[i] = ("%.2f,%.2f"):format(point[1], math.max(-far, math.min(far, point[2])))
  end
  local clip = self:clipped(top, bottom)
  self:add('<polyline points="%s" fill="none" stroke="%s" stroke-width="1.5"%s/>',
    table.concat(places, " "), colour, clip)
end

--- Fills what is between two curves with the same xs.
function Svg:area(upper, lower, colour)
  local places = {}
  for _, point in ipairs(upper) do
    places[#places + 1] = ("%.2f,%.2f"):format(point[1], point[2])
  end
  for i = #lower, 1, -1 do
    places[#places + 1] = ("%.2f,%.2f"):format(lower[i][1], lower[i][2])
  end
  self:add('<polygon points="%s" fill="%s"/>', table.concat(places, " "), colour)
end

function Svg:mark(x, y, colour)
  self:add('<circle cx="%.2f" cy="%.2f" r="2.5" fill="%s"/>', x, y, colour)
end

function Svg:text(x, y, text, anchor, colour)
  self:add('<text x="%.2f" y="%.2f" text-anchor="%s" fill="%s">%s</text>', x, y, anchor, colour,
    escaped(text))
end

function Svg:bytes()
  self:add "</svg>\n"
  return table.concat(self.parts, "\n")
end

return function(width, height)
  local svg = setmetatable({ parts = {}, clips = {} }, Svg)
  svg:add('<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" '
    .. 'font-family="sans-serif" font-size="12">', width, height, width, height)
  svg:add '<rect width="100%%" height="100%%" fill="white"/>'
  return svg
end
