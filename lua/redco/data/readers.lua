--- Readers of text, table, image and token files.
local arguments = require "redco.arguments"
local check_integer = require "redco.check_integer"
local csv_fields = require "redco.data.csv_fields"
local dataset = require "redco.data.dataset"
local fail = require "redco.fail"
local named = require "redco.data.named"
local from_files = require "redco.data.from_files"
local native = require "redco.native"
local registry = require "redco.registry"
local run_program = require "redco.run_program"
local torch = require "redco.torch"

local readers = {}

local function unpacked(path)
  local bytes, message = run_program { "gzip", "-dc", "--", path }
  return bytes or fail("cannot read: %s: %s", path, message)
end

local function read_all(path)
  if type(path) ~= "string" then
    fail("cannot read: expected a path, got %s", native.describe(path))
  end
  -- Refuses a pipe or a device, which may never end.
  local file = native.byte_file(path, "a file")
  if path:find "%.gz$" then return named(path, unpacked, path) end
  if #file > 0 then return named(path, file.bytes, file, 0, #file) end
  -- The files of /proc say that they are empty.
  local source, message = io.open(path, "rb")
  local bytes = source and source:read "*a"
  if source then source:close() end
  return bytes or fail("cannot read: %s", message)
end

readers.read = registry.define("redco.data.read", [[
read(path) -> string
Returns the bytes of a file; a pipe is an error. A file whose name ends in `.gz` is decompressed
with `gzip`.]],
  read_all)

-- Returns the records of a text file, compressed or not.
local function records_of(path, kind, delimiter)
  if type(path) ~= "string" then
    fail("cannot read: expected a path, got %s", native.describe(path))
  end
  return named(path, native.record_file, path, kind, path:find "%.gz$" and read_all(path) or nil,
    delimiter)
end

-- Returns the data set of get(i) for the records of a file from number `first` on.
local function over_records(path, file, first, get)
  local function record(i) return get(i + first - 1) end
  local function place(i)
    return ("%s:%d"):format(path, tonumber(file:line_number(i + first - 1)))
  end
  return dataset.new(math.max(0, tonumber(#file) - first + 1), function(i)
    return named(place, record, i)
  end, nil, place)
end

-- Concatenates the data sets of several files. `o` has the options of a data set of the Hub.
local function over_files(where, paths, endings, o, open)
  local sets = from_files.open(where, paths, endings, o, open)
  return #sets == 1 and type(paths) ~= "table" and sets[1] or dataset.concat(sets)
end

local function text_reader(where, kind)
  local options = arguments(where, {}, from_files.options)
  return function(paths, given)
    return over_files(where, paths, { ".txt", ".txt.gz" }, options(given), function(path)
      local file = records_of(path, kind)
      return over_records(path, file, 1, function(i) return file:record(i) end)
    end)
  end
end

readers.lines = registry.define("redco.data.lines", [[
lines(path: string or list of strings, {split: string = nil, name: string = nil,
  revision: string = nil, download: boolean = nil}) -> Dataset of strings
Returns the lines of a text file or of several. A line ends in "\n", "\r\n" or "\r". Only the
positions of the lines are held in memory: a line is read on access. A file whose name ends in `.gz`
is held whole. The same is true of `paragraphs`, `jsonl` and `csv`.

A path can also be a folder of data files, or the name of a data set of the Hugging Face Hub,
"org/name", that is in the cache of huggingface_hub: its `split`, "train" without it, of the
configuration `name`, at the `revision`. With `download` it is downloaded if it is not there.]],
  text_reader("data.lines", "line"))

readers.paragraphs = registry.define("redco.data.paragraphs", [[
paragraphs(path: string or list of strings, {split: string = nil, name: string = nil,
  revision: string = nil, download: boolean = nil}) -> Dataset of strings
Returns the paragraphs of a text file or of several. Blank lines separate paragraphs. Names of the
Hub as for `redco.data.lines`.]], text_reader("data.paragraphs", "paragraph"))

local jsonl_options = arguments("data.jsonl", {}, from_files.options)

readers.jsonl = registry.define("redco.data.jsonl", [[
jsonl(path: string or list of strings, {split: string = nil, name: string = nil,
  revision: string = nil, download: boolean = nil}) -> Dataset
Returns the values of a file, or of several, with one JSON text on each line. Blank lines are
skipped. A line is decoded on access. A line that is not JSON raises an error with its number
then. A null is nil, in an array or alone on a line `redco.null`. Names of the Hub as for
`redco.data.lines`.]],
function(paths, given)
  local endings = { ".jsonl", ".jsonl.gz", ".json", ".json.gz", ".ndjson" }
  return over_files("data.jsonl", paths, endings, jsonl_options(given), function(path)
    local file = records_of(path, "full_line")
    return over_records(path, file, 1, function(i)
      local text = file:record(i)
      local ok, value = pcall(native.json_decode, path, text)
      -- Lines are counted only for an error.
      if ok then return value == nil and native.null or value end
      local line = file:line_number(i)
      if text:find "^\31\139" then fail("%s:%d: this file is compressed with gzip", path, line) end
      if text:find "^%s*[%[{]%s*$" then
        fail("%s:%d: not valid JSON: expected a whole text on each line; redco.data.json reads "
          .. "one that is spread over lines", path, line)
      end
      return native.json_decode(path .. ":" .. line, text)
    end)
  end)
end)

local function check_names(path, names)
  local first = {}
  for i, name in ipairs(names) do
    if first[name] then
      fail("%s: the columns %d and %d have the same name '%s', and one would hide the other: "
        .. "rename one, or pass header = false for lists", path, first[name], i, name)
    end
    first[name] = i
  end
end

local csv_options = arguments("csv", { header = true },
  { "delimiter", unpack(from_files.options) })

readers.csv = registry.define("redco.data.csv", [[
csv(path: string or list of strings, {header = true, delimiter = nil, split: string = nil,
  name: string = nil, revision: string = nil, download: boolean = nil}) -> Dataset
Returns the records of a file, or of several, of comma-separated values (RFC 4180). A quoted value
may contain delimiters, line breaks and doubled quotes. A record is a table of strings, with the
names in the first record as keys; a name that occurs twice is an error. With header = false it is a
list of strings, and an empty value is "". A record ends in "\n", "\r\n" or "\r". The default
delimiter is ",", or a tab if the file's name ends in `.tsv`. A record whose number of values
differs from the first one's raises an error with its line number on access. `loadtxt` reads a table
of numbers as a tensor. Names of the Hub as for `redco.data.lines`.]], function(paths, options)
  local o = csv_options(options)
  if o.delimiter and #o.delimiter ~= 1 then
    fail("csv: delimiter: expected one character, got '%s'", o.delimiter)
  end
  return over_files("data.csv", paths, { ".csv", ".csv.gz", ".tsv", ".tsv.gz" }, o, function(path)
    local delimiter = o.delimiter or path:gsub("%.gz$", ""):sub(-4) == ".tsv" and "\t" or ","
    local file = records_of(path, "csv", delimiter)
    local function fields(i)
      return csv_fields(file:record(i), delimiter, function(message, ...)
        fail("%s:%d: " .. message, path, tonumber(file:line_number(i)), ...)
      end)
    end
    if #file == 0 then return dataset.new(0) end
    local names = named(path, fields, 1)
    if o.header then check_names(path, names) end
    return over_records(path, file, o.header and 2 or 1, function(i)
      local values = fields(i)
      if #values ~= #names then
        fail("%s:%d: the record has %d values, the first record has %d", path,
          file:line_number(i), #values, #names)
      end
      if not o.header then return values end
      local record = {}
      for j, name in ipairs(names) do record[name] = values[j] end
      return record
    end)
  end)
end)

local function matrix(path)
  local rows = {}
  for number, line in readers.lines(path):ipairs() do
    local row = {}
    for cell in (line .. ","):gmatch "([^,]*)," do
      row[#row + 1] = tonumber(cell) or fail("%s:%d: '%s' is not a number; redco.data.csv reads "
        .. "texts, names of columns and other delimiters", path, number, cell)
    end
    if rows[1] and #row ~= #rows[1] then
      fail("%s:%d: the row has %d numbers, the first row has %d", path, number, #row, #rows[1])
    end
    rows[number] = row
  end
  if #rows == 0 then fail("%s: the file has no rows", path) end
  return torch.tensor(rows, { dtype = "float32" })
end

readers.loadtxt = registry.define("redco.data.loadtxt", [[
loadtxt(path) -> Tensor [rows, columns]
Reads a file of comma-separated numbers as a float32 tensor. All rows must have the same number of
columns.]],
function(path) return named(path, matrix, path) end)

-- The third byte of a file names its type.
local idx_types = {
  [0x08] = { "uint8", 1 }, [0x09] = { "int8", 1 }, [0x0B] = { "int16", 2 },
  [0x0C] = { "int32", 4 }, [0x0D] = { "float32", 4 }, [0x0E] = { "float64", 8 },
}

readers.idx = registry.define("redco.data.idx", [[
idx(path) -> Tensor [sizes...]
Reads an IDX file, the format of MNIST, compressed with gzip or not: images are [count, height,
width], labels [count]. Only one-byte types are supported. The format:
http://yann.lecun.com/exdb/mnist, "the IDX file format".]], function(path)
  local bytes = read_all(path)
  local zero, zero_too, kind, n_dims = bytes:byte(1, 4)
  local dtype, size = unpack(idx_types[kind] or {})
  if zero ~= 0 or zero_too ~= 0 or not dtype or not n_dims then
    fail("%s: not an IDX file, which starts with two zero bytes, a type and a number of dimensions",
      path)
  end
  if size > 1 then
    fail("%s: IDX files of %s are not supported, only types of one byte", path, dtype)
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
    fail("%s: the file has %d bytes of data, its tensor [%s] needs %.0f", path, #bytes - offset,
      table.concat(shape, ", "), count)
  end
  return named(path, torch.frombuffer, bytes, { dtype = dtype, offset = offset }):view(shape)
end)

readers.json = registry.define("redco.data.json", [[
json(path) -> value
Reads a JSON file. Objects and arrays become tables. A null is nil, in an array `redco.null`. Tables
of objects remember the order of their keys, which `pairs` follows.]], function(path)
  return named(path, native.json_decode, path, read_all(path))
end)

readers.image = registry.define("redco.data.image", [[
image(path) -> Tensor [3, height, width]
Reads a PNG, JPEG, WebP, GIF, BMP or TIFF file as uint8 pixels in RGB. A grey image gives three equal
channels; CMYK becomes RGB; of an animation the first picture is read.
Transparency is dropped. The orientation in the metadata is ignored.]], function(path)
  return named(path, native.image_decode, path, read_all(path))
end)

local token_options = arguments("tokens", { dtype = "uint16" }, { "seq_len" })

readers.tokens = registry.define("redco.data.tokens", [[
tokens(path: string or list of strings, {seq_len, dtype = "uint16"}) -> Dataset of Tensors [seq_len + 1]
Returns rows of a file of token ids or of several. Row i has seq_len + 1 tokens, from position (i -
1) * seq_len: the first seq_len are the inputs, the last seq_len the labels. The incomplete row at
the end of a file is dropped. A file has its tokens one after another, 2 or 4 bytes each according
to `dtype`, or to its header if it has llm.c's.]], function(paths, options)
  local o = token_options(options)
  local seq_len = o.seq_len
  check_integer("tokens", "seq_len", seq_len, 1)
  return over_files("data.tokens", paths, {}, nil, function(path)
    local file = native.token_file(path, o.dtype)
    return dataset.new(math.max(0, math.floor((#file - 1) / seq_len)), function(i)
      return named(path, file.tokens, file, (i - 1) * seq_len, seq_len + 1)
    end)
  end)
end)

local write_options = arguments("write_tokens", { dtype = "uint16" })

readers.write_tokens = registry.define("redco.data.write_tokens", [[
write_tokens(path, tokens [count], {dtype = "uint16"})
Writes a file that `redco.data.tokens` reads. It has llm.c's header and then the tokens, a
tensor of integers. The header is 256 int32 numbers: 20240520 and 1 (for uint32: 20240801 and 7),
the number of tokens, then zeros.]],
function(path, tokens, options)
  native.write_tokens(path, tokens, write_options(options).dtype)
end)

return readers
