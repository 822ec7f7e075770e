--- Reads Parquet files, as Hugging Face datasets writes them.
local arguments = require "redco.arguments"
local dataset = require "redco.data.dataset"
local fail = require "redco.fail"
local from_files = require "redco.data.from_files"
local named = require "redco.data.named"
local native = require "redco.native"
local registry = require "redco.registry"

-- Returns the types of columns that the library datasets of Hugging Face writes into its files.
local function features_of(path, file)
  local text = file:metadata().huggingface
  if not text then return {} end
  local found = native.json_decode(path .. ": its key huggingface", text)
  for _, key in ipairs { "info", "features" } do
    found = type(found) == "table" and found[key] or {}
  end
  return type(found) == "table" and found or {}
end

-- Replaces the bytes of images by their pixels.
local function decode_images(path, row, features)
  for name, feature in pairs(features) do
    local value = row[name]
    if type(feature) == "table" and feature._type == "Image" and type(value) == "table"
      and value.bytes then
      row[name] = native.image_decode(("%s: the column %s"):format(path, name), value.bytes)
    end
  end
  return row
end

local options = arguments("parquet", { decode = true, max_memory = 2 ^ 32 },
  { "columns", unpack(from_files.options) })
return registry.define("redco.data.parquet", [[
parquet(path: string or list of strings, {columns: list of strings = nil, decode = true,
  max_memory: integer = 2^32, split: string = nil, name: string = nil, revision: string = nil,
  download: boolean = nil}) -> Dataset of tables
Returns the rows of a Parquet file, or of several shards, as tables by column. A list of numbers or
booleans is a tensor, of whole numbers int64; other lists and structs are tables. A null is nil. In a
list it is `redco.null`, and a list of numbers with a null is a table. Dates and times are the integers that are stored.

In files of Hugging Face datasets, columns of images become uint8 pixels [3, height, width], unless
`decode` is false. The data set has the description of the columns as `features`, such as the
`names` of classes, and the list of the selected `columns`.

The file is read by row groups, of which at most max_memory bytes are held: with larger files,
access in order is much faster than shuffled access. All codecs but LZO, Brotli and LZ4 are
supported; of the encodings PLAIN, RLE and dictionaries; no decimals and no 96-bit times.

A path can also be a folder of shards, or a data set of the Hugging Face Hub, as for
`redco.data.lines`.]],
function(paths, given)
  local o = options(given)
  if o.columns ~= nil and type(o.columns) ~= "table" then
    fail("parquet: columns: expected a list of names, got %s", native.describe(o.columns))
  end
  local function open(path)
    if type(path) ~= "string" then
      fail("parquet: expected a path, got %s", native.describe(path))
    end
    local file = named(path, native.parquet_file, path, o.columns, o.max_memory)
    local features = features_of(path, file)
    local function row_of(i)
      local row = file:row(i)
      return o.decode and decode_images(path, row, features) or row
    end
    local function get(i) return named(path, row_of, i) end
    return dataset.new(tonumber(#file), get, { features = features, columns = file:columns() },
      function(i) return ("%s: row %.0f"):format(path, i) end)
  end
  local sets = from_files.open("data.parquet", paths, { ".parquet" }, o, open)
  if type(paths) ~= "table" and #sets == 1 then return sets[1] end
  return dataset.joined(sets, sets[1] and { features = sets[1].features,
    columns = sets[1].columns })
end)
