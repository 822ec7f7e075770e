--- A canvas (charts.lua) that writes a PNG file.
local clip = require "redco.plot.clip"
local font = require "redco.plot.font"
local native = require "redco.native"
local torch = require "redco.torch"

local Png = {}
Png.__index = Png

local scale = 2  -- pixels of a unit

local function components(colour)
  local r, g, b = colour:match "^#(%x%x)(%x%x)(%x%x)$"
  return tonumber(r, 16), tonumber(g, 16), tonumber(b, 16)
end

--- Paints a square of `size` pixels with its upper left corner at x, y.
function Png:paint(x, y, size, r, g, b)
  x, y = math.floor(x), math.floor(y)
  for row = math.max(0, y), math.min(self.height - 1, y + size - 1) do
    for column = math.max(0, x), math.min(self.width - 1, x + size - 1) do
      local place = (row * self.width + column) * 3
      self.data[place], self.data[place + 1], self.data[place + 2] = r, g, b
    end
  end
end

function Png:line(x1, y1, x2, y2, colour, thickness)
  local r, g, b = components(colour)
  thickness = thickness or 1
  local n = math.ceil(math.max(math.abs(x2 - x1), math.abs(y2 - y1)) * scale) + 1
  for i = 0, n do
    self:paint((x1 + (x2 - x1) * i / n) * scale - thickness / 2,
      (y1 + (y2 - y1) * i / n) * scale - thickness / 2, thickness, r, g, b)
  end
end

function Png:curve(points, colour, top, bottom)
  for _, piece in ipairs(clip(points, top or -math.huge, bottom or math.huge)) do
    for i = 2, #piece do
      local from, to = piece[i - 1], piece[i]
      self:line(from[1], from[2], to[1], to[2], colour, 3)
    end
  end
end

--- Fills what is between two curves with the same xs, which do not fall.
function Png:area(upper, lower, colour)
  local r, g, b = components(colour)
  for i = 2, #upper do
    for x = math.floor(upper[i - 1][1] * scale), math.floor(upper[i][1] * scale) - 1 do
      for y = math.floor(upper[i][2] * scale), math.floor(lower[i][2] * scale) - 1 do
        self:paint(x, y, 1, r, g, b)
      end
    end
  end
end

function Png:mark(x, y, colour)
  local r, g, b = components(colour)
  self:paint(x * scale - 4, y * scale - 4, 9, r, g, b)
end

-- Mixes a colour into a pixel: `ink` of 15 parts.
function Png:mix(x, y, ink, r, g, b)
  if ink == 0 or x < 0 or y < 0 or x >= self.width or y >= self.height then return end
  local data, place = self.data, (y * self.width + x) * 3
  for i, value in ipairs { r, g, b } do
    local old = data[place + i - 1]
    data[place + i - 1] = old + (value - old) * ink / 15
  end
end

function Png:text(x, y, text, anchor, colour)
  local r, g, b = components(colour)
  local length = 0
  local glyphs = {}
  for character in text:gmatch "[%z\1-\127\194-\244][\128-\191]*" do
    glyphs[#glyphs + 1] = font[character] or font["?"]
    length = length + glyphs[#glyphs].advance
  end
  local pen, baseline = math.floor(x * scale + 0.5), math.floor(y * scale + 0.5)
  if anchor == "end" then pen = pen - length end
  if anchor == "middle" then pen = pen - math.floor(length / 2) end
  for _, glyph in ipairs(glyphs) do
    for i = 1, #glyph.pixels do
      local row, column = math.floor((i - 1) / glyph.width), (i - 1) % glyph.width
      self:mix(pen + glyph.left + column, baseline - glyph.top + row,
        tonumber(glyph.pixels:sub(i, i), 16), r, g, b)
    end
    pen = pen + glyph.advance
  end
end

function Png:bytes()
  return native.png_encode("plot", self.pixels:permute { 2, 0, 1 })
end

return function(width, height)
  width, height = width * scale, height * scale
  local pixels = torch.full({ height, width, 3 }, 255, { dtype = "uint8" })
  return setmetatable({ pixels = pixels, data = pixels:data_ptr(), width = width,
    height = height }, Png)
end
