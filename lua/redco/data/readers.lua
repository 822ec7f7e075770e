--- Readers of data files.
local fail = require "redco.fail"
local native = require "redco.native"
local registry = require "redco.registry"
local torch = require "redco.torch"

local readers = {}

local function output_of(command)
  local pipe, message = io.popen(command, "r")
  if not pipe then fail("cannot run gzip: %s", message) end
  local bytes = pipe:read "*a"
  pipe:close()
  return bytes
end

local function unpacked(path)
  -- LuaJIT tells nothing of how the command ended: it says so itself, in the last byte.
  local gzip = " -- '" .. path:gsub("'", "'\\''") .. "' 2>"
  local bytes = output_of("gzip -dc" .. gzip .. "/dev/null && printf 0 || printf 1")
  if bytes:sub(-1) ~= "0" then
    fail("cannot read: %s: %s", path, (output_of("gzip -t" .. gzip .. "&1"):gsub("%s+", " ")))
  end
  return bytes:sub(1, -2)
end

local function read_all(path)
  if type(path) ~= "string" then fail("cannot read: expected a path, got a %s", type(path)) end
  local file, message = io.open(path, "rb")
  if not file then fail("cannot read: %s", message) end
  local packed, bytes = path:match "%.gz$" ~= nil, nil
  if not packed then bytes, message = file:read "*a" end
  file:close()
  if packed then return unpacked(path) end
  return bytes or fail("cannot read: %s: %s", path, message)
end

readers.read = registry.define("redco.data.read", [[
read(path) -> string
The bytes of a file; what `gzip` unpacks where its name ends in `.gz`.]], read_all)

readers.lines = registry.define("redco.data.lines", [[
lines(path) -> list of strings
The lines of a text file, packed or not.]], function(path)
  local lines = {}
  for line in read_all(path):gmatch "([^\n]*)\n?" do lines[#lines + 1] = (line:gsub("\r$", "")) end
  if lines[#lines] == "" then lines[#lines] = nil end
  return lines
end)

readers.jsonl = registry.define("redco.data.jsonl", [[
jsonl(path) -> list
The values of a file with one JSON text on each line; lines that are blank are left out.]],
function(path)
  local values = {}
  for number, line in ipairs(readers.lines(path)) do
    if line:find "%S" then
      values[#values + 1] = native.json_decode(path .. ":" .. number, line)
    end
  end
  return values
end)

readers.csv = registry.define("redco.data.csv", [[
csv(path) -> Tensor [rows, columns]
A file of numbers, separated by commas, as float32; all rows must have as many as the first.]],
function(path)
  local rows = {}
  for number, line in ipairs(readers.lines(path)) do
    local row = {}
    for cell in (line .. ","):gmatch "([^,]*)," do
      row[#row + 1] = tonumber(cell) or fail("%s:%d: '%s' is no number", path, number, cell)
    end
    if rows[1] and #row ~= #rows[1] then
      fail("%s:%d: %d numbers, the first row has %d", path, number, #row, #rows[1])
    end
    rows[number] = row
  end
  if #rows == 0 then fail("%s: the file has no rows", path) end
  return torch.tensor(rows, { dtype = "float32" })
end)

-- The third byte of a file names its type.
local idx_types = {
  [0x08] = { "uint8", 1 }, [0x09] = { "int8", 1 }, [0x0B] = { "int16", 2 },
  [0x0C] = { "int32", 4 }, [0x0D] = { "float32", 4 }, [0x0E] = { "float64", 8 },
}

readers.idx = registry.define("redco.data.idx", [[
idx(path) -> Tensor
An IDX file, as MNIST and its kin come in, packed with gzip or not. Only types of one byte.
The format: http://yann.lecun.com/exdb/mnist, "the IDX file format".]], function(path)
  local bytes = read_all(path)
  local zero, zero_too, kind, n_dims = bytes:byte(1, 4)
  local dtype, size = unpack(idx_types[kind] or {})
  if zero ~= 0 or zero_too ~= 0 or not dtype or not n_dims then
    fail("%s: this is no IDX file: one starts with two zeros, a type and a number of dimensions",
      path)
  end
  if size > 1 then
    fail("%s: IDX files of %s are not read, only those of one byte", path, dtype)
  end
  local shape, count = {}, 1
  for i = 1, n_dims do
    local a, b, c, d = bytes:byte(4 * i + 1, 4 * i + 4)
    if not d then fail("%s: the file ends inside its header", path) end
    shape[i] = ((a * 256 + b) * 256 + c) * 256 + d
    count = count * shape[i]
  end
  local offset = 4 + 4 * n_dims
  if #bytes ~= offset + count then
    fail("%s: %d bytes of data, a tensor [%s] has %.0f", path, #bytes - offset,
      table.concat(shape, ", "), count)
  end
  return torch.frombuffer(bytes, { dtype = dtype, offset = offset }):view(shape)
end)

readers.json = registry.define("redco.data.json", [[
json(path) -> value
What a JSON file has: objects and arrays are tables, null is nil.]], function(path)
  return native.json_decode(path, read_all(path))
end)

readers.image = registry.define("redco.data.image", [[
image(path) -> Tensor [3, height, width]
The pixels of a PNG or JPEG file as uint8, in RGB: grey values thrice, without transparency, not
turned where the metadata asks for it.]], function(path)
  return native.image_decode(path, read_all(path))
end)

return readers
