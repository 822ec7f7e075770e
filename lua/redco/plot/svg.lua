--- Draws SVG files. x grows to the right, y downwards; colours are texts such as "#1f6fb4".
local Svg = {}
Svg.__index = Svg

-- Replaces bytes that XML does not allow by "?": control characters, and those that are not UTF-8.
local function valid_only(text)
  return (text:gsub("[%z\1-\31]", "?"):gsub("([\128-\255])([\128-\191]*)", function(lead, rest)
    local size = lead < "\194" and 0 or lead < "\224" and 1 or lead < "\240" and 2
      or lead < "\245" and 3 or 0
    if size == 0 or #rest < size then return "?" end
    return lead .. rest:sub(1, size) .. (#rest > size and "?" or "")
  end))
end

local function escaped(text)
  return (valid_only(text):gsub("[&<>]", { ["&"] = "&amp;", ["<"] = "&lt;", [">"] = "&gt;" }))
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

--- Draws a line through points { x, y }, but not above `top` and below `bottom`, if they are given.
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

--- `anchor` is the place of x in the text: "start", "middle" or "end".
function Svg:text(x, y, text, anchor, colour)
  self:add('<text x="%.2f" y="%.2f" text-anchor="%s" fill="%s">%s</text>', x, y, anchor, colour,
    escaped(text))
end

--- Ends the picture; returns the bytes of its file.
function Svg:bytes()
  self:add "</svg>\n"
  return table.concat(self.parts, "\n")
end

--- Returns an empty picture.
return function(width, height)
  local svg = setmetatable({ parts = {}, clips = {} }, Svg)
  svg:add('<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" '
    .. 'font-family="sans-serif" font-size="12">', width, height, width, height)
  svg:add '<rect width="100%%" height="100%%" fill="white"/>'
  return svg
end
