--- Images on a terminal: by the protocols of kitty and iTerm2 or as sixels where the terminal has
--- one of them, else as blocks of two pixels each, an upper and a lower one, in 24-bit colours.
local bit = require "bit"

local terminal_image = {}

local alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"

local function base64(bytes)
  local parts = {}
  for i = 1, #bytes, 3 do
    local a, b, c = bytes:byte(i, i + 2)
    local n = a * 65536 + (b or 0) * 256 + (c or 0)
    local digits = {}
    for k = 0, 3 do
      local place = math.floor(n / 64 ^ (3 - k)) % 64 + 1
      digits[k + 1] = alphabet:sub(place, place)
    end
    if not b then digits[3] = "=" end
    if not c then digits[4] = "=" end
    parts[#parts + 1] = table.concat(digits)
  end
  return table.concat(parts)
end

-- kitty's protocol: the file in pieces of 4096 characters.
local function kitty(png)
  local text, pieces = base64(png), {}
  for i = 1, #text, 4096 do
    local piece = text:sub(i, i + 4095)
    pieces[#pieces + 1] = ("\27_G%sm=%d;%s\27\\"):format(i == 1 and "a=T,f=100," or "",
      i + 4096 <= #text and 1 or 0, piece)
  end
  return table.concat(pieces) .. "\n"
end

local function iterm2(png)
  return ("\27]1337;File=inline=1;size=%d:%s\7\n"):format(#png, base64(png))
end

-- A colour of a cube of 6 x 6 x 6 colours.
local function cube_colour(pixel)
  local number = 0
  for i = 1, 3 do number = number * 6 + math.floor(pixel[i] / 51 + 0.5) end
  return number
end

-- Six rows of pixels from row `top`: for each colour in them, its columns as bits.
local function sixel_band(pixels, top)
  local columns, used = {}, {}
  for y = top, math.min(top + 5, #pixels) do
    for x, pixel in ipairs(pixels[y]) do
      local colour = cube_colour(pixel)
      if not columns[colour] then columns[colour], used[#used + 1] = {}, colour end
      columns[colour][x] = bit.bor(columns[colour][x] or 0, bit.lshift(1, y - top))
    end
  end
  local parts, width = {}, #pixels[top]
  for i, colour in ipairs(used) do
    local characters = {}
    for x = 1, width do characters[x] = string.char(63 + (columns[colour][x] or 0)) end
    parts[i] = ("#%d%s"):format(colour, table.concat(characters))
  end
  return table.concat(parts, "$") .. "-"
end

local function sixels(pixels)
  local parts = { ('\27Pq"1;1;%d;%d'):format(#pixels[1], #pixels) }
  for colour = 0, 215 do
    parts[#parts + 1] = ("#%d;2;%d;%d;%d"):format(colour, math.floor(colour / 36) * 20,
      math.floor(colour / 6) % 6 * 20, colour % 6 * 20)
  end
  for top = 1, #pixels, 6 do parts[#parts + 1] = sixel_band(pixels, top) end
  return table.concat(parts) .. "\27\\\n"
end

--- Returns "kitty", "iterm2", "sixel" or "blocks" by the environment variables of a terminal.
function terminal_image.protocol(getenv)
  if getenv "KITTY_WINDOW_ID" or (getenv "TERM" or ""):find "kitty"
    or getenv "TERM_PROGRAM" == "ghostty" then
    return "kitty"
  end
  local program, term = getenv "TERM_PROGRAM", getenv "TERM" or ""
  for _, name in ipairs { "foot", "mlterm", "sixel", "yaft" } do
    if term:find(name, 1, true) then return "sixel" end
  end
  if program == "mintty" then return "sixel" end
  return (program == "iTerm.app" or program == "WezTerm") and "iterm2" or "blocks"
end

-- Colours are set only where they change.
local function blocks(pixels)
  local lines, height, width = {}, #pixels, #pixels[1]
  for y = 1, height, 2 do
    local line, last = {}, ""
    for x = 1, width do
      local up, down = pixels[y][x], pixels[y + 1] and pixels[y + 1][x]
      local colours = ("\27[38;2;%d;%d;%dm"):format(unpack(up))
        .. (down and ("\27[48;2;%d;%d;%dm"):format(unpack(down)) or "\27[49m")
      line[x] = (colours ~= last and colours or "") .. "▀"
      last = colours
    end
    lines[#lines + 1] = table.concat(line) .. "\27[0m\n"
  end
  return table.concat(lines)
end

--- Returns the text that shows an image. `png` are the bytes of its file, `pixels` a list of rows
--- of {red, green, blue}.
function terminal_image.text(protocol, png, pixels)
  if protocol == "kitty" then return kitty(png) end
  if protocol == "iterm2" then return iterm2(png) end
  if protocol == "sixel" then return sixels(pixels) end
  return blocks(pixels)
end

return terminal_image
