--- A canvas (charts.lua) that writes a PNG file.
local native = require "redco.native"
local torch = require "redco.torch"

local Png = {}
Png.__index = Png

local scale = 2  -- pixels of a unit

-- Five rows of three dots each. An octal digit is one row; its 4 is the leftmost dot.
local glyphs = {
  ["0"] = "75557", ["1"] = "26227", ["2"] = "71747", ["3"] = "71717", ["4"] = "55711",
  ["5"] = "74717", ["6"] = "74757", ["7"] = "71122", ["8"] = "75757", ["9"] = "75717",
  A = "25755", B = "65656", C = "34443", D = "65556", E = "74647", F = "74644", G = "34553",
  H = "55755", I = "72227", J = "11152", K = "55655", L = "44447", M = "57755", N = "65555",
  O = "25552", P = "65644", Q = "25563", R = "65655", S = "34216", T = "72222", U = "55557",
  V = "55552", W = "55775", X = "55255", Y = "55222", Z = "71247", ["."] = "00002",
  ["-"] = "00700", ["+"] = "02720", ["_"] = "00007", ["/"] = "11244", [":"] = "02020",
  ["%"] = "51245", [" "] = "00000", ["@"] = "25743", ["("] = "12221", [")"] = "42224",
}
local unknown = "77777"
local dot, advance = 2, 8  -- units

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

function Png:curve(points, colour)
  for i = 2, #points do
    local from, to = points[i - 1], points[i]
    self:line(from[1], from[2], to[1], to[2], colour, 3)
  end
end

function Png:text(x, y, text, anchor)
  local length = #text * advance - dot
  if anchor == "end" then x = x - length elseif anchor == "middle" then x = x - length / 2 end
  for i = 1, #text do
    local rows = glyphs[text:sub(i, i):upper()] or unknown
    for row = 1, 5 do
      local bits = tonumber(rows:sub(row, row))
      for column = 0, 2 do
        if math.floor(bits / 2 ^ (2 - column)) % 2 == 1 then
          self:paint((x + column * dot) * scale, (y + (row - 6) * dot) * scale, dot * scale,
            40, 40, 40)
        end
      end
    end
    x = x + advance
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
