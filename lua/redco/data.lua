--- Readers of data files.
local registry = require "redco.registry"
local torch = require "redco.torch"

local data = {}

local function read_all(path)
  local file, message
  if path:match "%.gz$" then
    -- popen tells nothing of a file that is missing: ask first.
    file, message = io.open(path, "rb")
    if file then
      file:close()
      file, message = io.popen("gzip -dc -- '" .. path:gsub("'", "'\\''") .. "'", "r")
    end
  else
    file, message = io.open(path, "rb")
  end
  if not file then error("cannot read: " .. message, 0) end
  local bytes = file:read "*a"
  file:close()
  return bytes
end

data.read = registry.define("redco.data.read", [[
read(path) -> string
The bytes of a file; what `gzip` unpacks where its name ends in `.gz`.]], read_all)

data.lines = registry.define("redco.data.lines", [[
lines(path) -> list of strings
The lines of a text file, packed or not.]], function(path)
  local lines = {}
  for line in read_all(path):gmatch "([^\n]*)\n?" do lines[#lines + 1] = (line:gsub("\r$", "")) end
  if lines[#lines] == "" then lines[#lines] = nil end
  return lines
end)

data.csv = registry.define("redco.data.csv", [[
csv(path) -> Tensor [rows, columns]
A file of numbers, separated by commas, as float32; all rows must have as many as the first.]],
function(path)
  local rows = {}
  for number, line in ipairs(data.lines(path)) do
    local row = {}
    for cell in line:gmatch "[^,]+" do
      row[#row + 1] = tonumber(cell) or error(("%s:%d: '%s' is no number"):format(path, number,
        cell), 0)
    end
    if rows[1] and #row ~= #rows[1] then
      error(("%s:%d: %d numbers, the first row has %d"):format(path, number, #row, #rows[1]), 0)
    end
    rows[number] = row
  end
  return torch.tensor(rows, { dtype = "float32" })
end)

-- The third byte of a file names its type.
local idx_types = {
  [0x08] = { "uint8", 1 }, [0x09] = { "int8", 1 }, [0x0B] = { "int16", 2 },
  [0x0C] = { "int32", 4 }, [0x0D] = { "float32", 4 }, [0x0E] = { "float64", 8 },
}

data.idx = registry.define("redco.data.idx", [[
idx(path) -> Tensor
An IDX file, as MNIST and its kin come in, packed with gzip or not. Only types of one byte.
The format: http://yann.lecun.com/exdb/mnist, "the IDX file format".]], function(path)
  local bytes = read_all(path)
  local zero, zero_too, kind, n_dims = bytes:byte(1, 4)
  local dtype, size = unpack(idx_types[kind] or {})
  if zero ~= 0 or zero_too ~= 0 or not dtype then
    error(path .. ": this is no IDX file: it starts with two zeros and a type", 0)
  end
  if size > 1 then
    error(("%s: IDX files of %s are not read, only those of one byte"):format(path, dtype), 0)
  end
  local shape, count = {}, 1
  for i = 1, n_dims do
    local a, b, c, d = bytes:byte(4 * i + 1, 4 * i + 4)
    if not d then error(path .. ": the file ends inside its header", 0) end
    shape[i] = ((a * 256 + b) * 256 + c) * 256 + d
    count = count * shape[i]
  end
  local offset = 4 + 4 * n_dims
  if #bytes ~= offset + count then
    error(("%s: %d bytes of data, a tensor [%s] has %d"):format(path, #bytes - offset,
      table.concat(shape, ", "), count), 0)
  end
  return torch.frombuffer(bytes, { dtype = dtype, offset = offset }):view(shape)
end)

return data
