--- Readers of NumPy's files: .npy, one array, and .npz, a zip archive of them.
local byte_source = require "redco.data.byte_source"
local fail = require "redco.fail"
local named = require "redco.data.named"
local native = require "redco.native"
local registry = require "redco.registry"

local numpy = {}

-- By NumPy's type: the stored dtype, and a conversion for types that have no dtype here.
local dtypes = {
  ["|b1"] = { "bool" }, ["|i1"] = { "int8" }, ["|u1"] = { "uint8" }, ["<i2"] = { "int16" },
  ["<i4"] = { "int32" }, ["<i8"] = { "int64" }, ["<f2"] = { "float16" }, ["<f4"] = { "float32" },
  ["<f8"] = { "float64" }, ["<c8"] = { "complex64" }, ["<c16"] = { "complex128" },
  ["<u2"] = { "int16", function(t) return t:int():bitwise_and(0xFFFF) end },
  ["<u4"] = { "int32", function(t) return t:long():bitwise_and(0xFFFFFFFF) end },
}

local sizes = { bool = 1, int8 = 1, uint8 = 1, int16 = 2, int32 = 4, int64 = 8, float16 = 2,
  float32 = 4, float64 = 8, complex64 = 8, complex128 = 16 }

-- The format: numpy/lib/format.py. Magic, version, the length of the header, a Python dictionary.
local magic = "\147NUMPY"

local function little_endian(bytes)
  local value = 0
  for i = #bytes, 1, -1 do value = value * 256 + bytes:byte(i) end
  return value
end

-- Returns the text of the header and the offset of the data.
local function read_header(where, source)
  local start = source.size >= 10 and source.bytes(0, 10) or ""
  local major = start:byte(7)
  if start:sub(1, 6) ~= magic or major < 1 or major > 3 then
    fail("%s: not a NumPy array, which starts with \\147NUMPY and a version from 1 to 3", where)
  end
  local width = major == 1 and 2 or 4
  local length = source.size >= 8 + width and little_endian(source.bytes(8, width)) or math.huge
  if 8 + width + length > source.size then
    fail("%s: the file ends inside its header: it is cut short", where)
  end
  return source.bytes(8 + width, length), 8 + width + length
end

local function read_array(where, source)
  local header, offset = read_header(where, source)
  local descr = header:match "'descr':%s*'([^']*)'"
  local order = header:match "'fortran_order':%s*(%a+)"
  local shape_text = header:match "'shape':%s*%(([%d,%sL]*)%)"
  if not shape_text or order ~= "True" and order ~= "False" then
    fail("%s: its header is damaged: %s", where, header:sub(1, 80))
  end
  local dtype, convert = unpack(dtypes[descr] or {})
  if not dtype then
    fail("%s: arrays of type %s are not supported, only little-endian numbers and booleans, but "
      .. "for uint64%s", where, descr or "with fields",
      descr == "|O" and "; objects are stored as pickles, which run code" or "")
  end
  local shape, count = {}, 1
  for size in shape_text:gmatch "%d+" do
    shape[#shape + 1] = tonumber(size)
    count = count * shape[#shape]
  end
  -- A size of 2^53 bytes or more is not exact, and no file has it.
  local n_bytes = count * sizes[dtype]
  if source.size - offset ~= n_bytes then
    fail("%s: the file has %.0f bytes of data, its array [%s] of %s needs %.0f", where,
      source.size - offset, table.concat(shape, ", "), descr, n_bytes)
  end
  local t = source.tensor(offset, count, dtype)
  if convert then t = convert(t) end
  if order == "False" or #shape < 2 then return t:view(shape) end
  local dims, reversed = {}, {}
  for i = 1, #shape do dims[i], reversed[i] = #shape - i, shape[#shape + 1 - i] end
  return t:view(reversed):permute(dims):contiguous()
end

local function check_path(name, path)
  if type(path) ~= "string" then
    fail("%s: expected a path, got %s", name, native.describe(path))
  end
end

numpy.npy = registry.define("redco.data.npy", [[
npy(path) -> Tensor
Reads a NumPy array, a file that numpy.save writes. uint16 becomes int32, and uint32 int64. uint64,
big-endian numbers, text, records and objects are not supported. The format:
https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html.]], function(path)
  check_path("data.npy", path)
  return named(path, read_array, path, byte_source.of_file(path, "a NumPy array"))
end)

--- Reads an array from the bytes of a .npy file; `where` names it in errors.
function numpy.array_of(where, text)
  return named(where, read_array, where, byte_source.of_text(text))
end

numpy.npz = registry.define("redco.data.npz", [[
npz(path) -> table
Reads a file that numpy.savez or numpy.savez_compressed writes: a table of tensors by name. The
arrays are as in `npy`.]], function(path)
  check_path("data.npz", path)
  local arrays = {}
  for name, text in pairs(named(path, native.zip_archive, path)) do
    arrays[name:gsub("%.npy$", "")] = numpy.array_of(path .. ": " .. name, text)
  end
  return arrays
end)

return numpy
