--- Reads tar archives of examples, as WebDataset writes them.
local arguments = require "redco.arguments"
local byte_source = require "redco.data.byte_source"
local dataset = require "redco.data.dataset"
local fail = require "redco.fail"
local named = require "redco.data.named"
local native = require "redco.native"
local numpy = require "redco.data.numpy"
local readers = require "redco.data.readers"
local registry = require "redco.registry"

-- The format: POSIX.1-2001, pax; with GNU's long names and numbers.
local block = 512

local function text_field(header, from, length)
  return (header:sub(from + 1, from + length):match "^%Z*")
end

local function number_field(header, from, length)
  local first = header:byte(from + 1)
  if first >= 128 then  -- GNU's binary numbers
    local value = first - 128
    for i = from + 2, from + length do value = value * 256 + header:byte(i) end
    return value
  end
  local digits = header:sub(from + 1, from + length):match "^[ ]*([0-7]*)[ %z]*$"
  return digits and tonumber(digits, 8)
end

local function check_header(where, header, offset)
  local stored, sum = number_field(header, 148, 8), 8 * 32  -- the field itself counts as blanks
  for i = 1, block do
    if i <= 148 or i > 156 then sum = sum + header:byte(i) end
  end
  if stored ~= sum then
    fail("%s: no tar header at byte %.0f: it is damaged or no tar archive", where, offset)
  end
end

-- Records of a pax header, "LENGTH key=value\n".
local function pax_records(where, text)
  local records, at = {}, 1
  while at <= #text do
    local length = tonumber(text:match("^(%d+) ", at))
    local key, value = text:sub(at, at + (length or 0) - 1):match "^%d+ ([^=]+)=(.*)\n$"
    if not key or at + length - 1 > #text then fail("%s: a pax header is damaged", where) end
    records[key], at = value, at + length
  end
  return records
end

local regular = { ["0"] = true, ["\0"] = true, ["7"] = true }
local skipped = { ["5"] = true, g = true }  -- folders, records for all files

--- Calls visit(name, offset, size) for each file of an archive.
local function each_file(where, source, visit)
  local offset, long_name, long_size, has_end = 0, nil, nil, false
  while offset < source.size do
    if offset + block > source.size then fail("%s: the archive is cut short", where) end
    local header = source.bytes(offset, block)
    if not header:find "%Z" then
      has_end = true
      break
    end
    check_header(where, header, offset)
    local size = long_size or number_field(header, 124, 12)
    local kind, prefix = header:sub(157, 157), text_field(header, 345, 155)
    local name = long_name or text_field(header, 0, 100)
    if not long_name and header:sub(258, 262) == "ustar" and header:sub(263, 263) == "\0"
      and prefix ~= "" then
      name = prefix .. "/" .. name
    end
    local data = offset + block
    if not size then fail("%s: the size of the file %s is damaged", where, name) end
    if size > source.size - data then
      fail("%s: the file %s has %s bytes, of which the archive has %.0f: it is cut short", where,
        name, size, source.size - data)
    end
    long_name, long_size = nil, nil
    if kind == "L" then
      long_name = source.bytes(data, size):match "^%Z*"
    elseif kind == "x" then
      local records = pax_records(where, source.bytes(data, size))
      long_name, long_size = records.path, tonumber(records.size)
    elseif regular[kind] then
      visit(name, data, size)
    elseif not skipped[kind] then
      fail("%s: %s is no regular file but of type '%s', which is not supported", where, name, kind)
    end
    offset = data + math.ceil(size / block) * block
  end
  if not has_end then fail("%s: the archive is cut short: it has no end", where) end
end

-- Returns the examples of an archive: one text each, with the key and, for each file, its ending,
-- offset and size on a line. This is far smaller than tables.
local function index_of(where, source)
  local examples, last_key, lines, seen = {}, nil, nil, nil
  local function finish()
    if lines then examples[#examples + 1] = table.concat(lines, "\n") end
  end
  each_file(where, source, function(name, offset, size)
    local folder, base, ending = name:match "^(.-)([^/.]+)%.([^/]*)$"
    local is_hidden = not base or folder ~= "" and folder:sub(-1) ~= "/"
    if is_hidden or name:find "\n" then return end  -- such as .DS_Store and ._1.jpg
    local key = folder .. base
    if key ~= last_key then
      finish()
      last_key, lines, seen = key, { key }, {}
    end
    ending = ending:lower()
    if seen[ending] then
      fail("%s: the example %s has two files that end in .%s", where, key, ending)
    end
    seen[ending] = true
    lines[#lines + 1] = ("%s %.0f %.0f"):format(ending, offset, size)
  end)
  finish()
  return examples
end

local function image(where, bytes) return native.image_decode(where, bytes) end

local decoders = {
  png = image, jpg = image, jpeg = image, webp = image, gif = image, bmp = image, tif = image,
  tiff = image,
  json = function(where, bytes) return native.json_decode(where, bytes) end,
  npy = numpy.array_of,
  cls = function(where, bytes)
    return tonumber(bytes) or fail("%s: '%s' is not a number", where, bytes:sub(1, 40))
  end,
}

local options = arguments("tar", { decode = true })
return registry.define("redco.data.tar", [[
tar(path: string or list of strings, {decode = true}) -> Dataset of tables
Returns the examples of a tar archive, or of several shards, in WebDataset's form: files in
succession whose names are equal up to the first dot are one example. It is a table with the ending
of each file as key, and the name as `__key__`. With `decode`, image files (by their endings)
become uint8 pixels [3, height, width], json values, cls numbers and npy tensors; all others, and
all without `decode`, are strings. Only an index is held in memory. An archive whose name ends in
`.gz` is held whole.]], function(paths, given)
  local o = options(given)
  local function open(path)
    if type(path) ~= "string" then fail("tar: expected a path, got %s", native.describe(path)) end
    local source = path:find "gz$" and byte_source.of_text(readers.read(path))
      or byte_source.of_file(path, "a tar archive")
    local examples = named(path, index_of, path, source)
    local function example_of(i)
      local key, files = examples[i]:match "^([^\n]*)\n(.*)$"
      local example = { __key__ = key }
      for ending, offset, size in (files .. "\n"):gmatch "(%S*) (%d+) (%d+)\n" do
        local bytes = source.bytes(tonumber(offset), tonumber(size))
        local decode = o.decode and decoders[ending:match "[^.]*$"]
        example[ending] = decode and decode(("%s: %s.%s"):format(path, key, ending), bytes) or bytes
      end
      return example
    end
    return dataset.new(#examples, function(i) return named(path, example_of, i) end)
  end
  if type(paths) ~= "table" then return open(paths) end
  local sets = {}
  for i, path in ipairs(paths) do sets[i] = open(path) end
  return dataset.concat(sets)
end)
