-- redco.data: readers of files, packed or not, and what they say of broken ones.
local redco = require "redco"
local testing = require "testing"

local data, torch = redco.data, redco.torch
local test, expect_error = testing.test, testing.expect_error
local expect_close, expect_equal = testing.expect_close, testing.expect_equal

local folder = testing.folder()

local write = testing.write
local function packed(name, bytes)
  local path = write(name, bytes)
  assert(os.execute(("gzip -f '%s'"):format(path)) == 0)
  return path .. ".gz"
end

test("read gives the bytes, those of a packed file unpacked", function()
  local bytes = "a\0b\r\n\255" .. ("x"):rep(100000)
  assert(data.read(write("plain", bytes)) == bytes)
  assert(data.read(packed("zip", bytes)) == bytes)
  expect_equal(data.read(write("empty", "")), "")
  expect_equal(data.read(packed("empty", "")), "")
end)

test("read takes paths with blanks and quotes, and does not run them", function()
  expect_equal(data.read(write("it's a file $(touch x); `y`", "text")), "text")
  local path = write("it's \"b\" $(touch x)", "text")
  assert(os.execute("gzip -f \"$(ls -d '" .. folder .. "'/it*b*)\"") == 0)
  expect_equal(data.read(path .. ".gz"), "text")
end)

test("a file that is missing, a folder, and what is no path are errors of the caller's line",
  function()
  for _, name in ipairs { "nowhere.csv", "nowhere.gz" } do
    local path = folder .. "/" .. name
    expect_error(function() data.read(path) end, "data_spec.lua:", path, "No such file")
    expect_error(function() data.lines(path) end, "data_spec.lua:", path, "No such file")
    expect_error(function() data.csv(path) end, "data_spec.lua:", path, "No such file")
    expect_error(function() data.idx(path) end, "data_spec.lua:", path, "No such file")
  end
  expect_error(function() data.read(folder) end, "data_spec.lua:", folder,
    "a folder, expected a file")
  expect_error(function() data.read(nil) end, "data_spec.lua:", "path")
end)

test("a packed file that is broken or cut short is an error, not a shorter text", function()
  local good = packed("long", ("some text, "):rep(1000) .. tostring({}))
  local file = assert(io.open(good, "rb"))
  local bytes = file:read "*a"
  file:close()
  for _, size in ipairs { 2, 10, math.floor(#bytes / 2), #bytes - 8, #bytes - 1 } do
    local path = write(("cut%d.gz"):format(size), bytes:sub(1, size))
    expect_error(function() data.read(path) end, "data_spec.lua:", path, "unexpected end of file")
  end
  local path = write("no_zip.gz", "this is no gzip file")
  expect_error(function() data.read(path) end, "data_spec.lua:", path, "not in gzip format")
  expect_error(function() data.idx(path) end, "data_spec.lua:", path)
  expect_error(function() data.lines(path) end, "data_spec.lua:", path)
end)

test("json: values, and what is none", function()
  local function json(text) return data.json(write("value.json", text)) end
  local found = json ' {"a": [1, -2.5e3, "\\u00e9\\n", true, {}], "b": null, "c": 9007199254740993}'
  expect_equal(table.concat({ found.a[1], found.a[2], found.a[3] }, " "), "1 -2500 é\n")
  expect_equal(found.a[4], true)
  expect_equal(next(found.a[5]), nil)
  expect_equal(found.b, nil)
  expect_equal(tostring(found.c), "9007199254740993LL")
  for text, part in pairs { [""] = "not valid JSON", ["{"] = "not valid JSON",
    ["[1] 2"] = "not valid JSON", ['{"a": 1, "a": 2}'] = "'a' is there twice",
    ["[1\0]"] = "zero byte", ['"\200"'] = "not valid JSON",
    [("["):rep(501) .. ("]"):rep(501)] = "nested deeper" } do
    expect_error(function() json(text) end, "data_spec.lua:", folder .. "/value.json", part)
  end
end)

test("jsonl: a value on each line, and the line of one that is none", function()
  local path = write("values.jsonl", '{"a": 1}\n\n[2]\n')
  local found = data.jsonl(path)
  expect_equal(#found, 2)
  expect_equal(found[1].a + found[2][1], 3)
  found = data.jsonl(write("bad.jsonl", "1\n\n{"))
  expect_equal(found[1], 1)
  expect_error(function() return found[2] end, "data_spec.lua:", "/bad.jsonl:3: not valid JSON")
end)

test("lines: ends of lines, the last one without, empty lines", function()
  local function lines(bytes)
    return table.concat(data.lines(write("lines", bytes)):tolist(), "|")
  end
  expect_equal(lines "a\nb\n", "a|b")
  expect_equal(lines "a\nb", "a|b")
  expect_equal(lines "a\r\nb\r\n", "a|b")
  expect_equal(lines "a\n\n\nb\n", "a|||b")
  expect_equal(#data.lines(write("lines", "")), 0)
  expect_equal(#data.lines(write("lines", "\n")), 1)
  expect_equal(#data.lines(write("lines", "a\n\n")), 2)
  expect_equal(table.concat(data.lines(packed("lines2", "x\ny\n")):tolist(), "|"), "x|y")
end)

test("loadtxt: numbers of all forms, packed or not", function()
  local text = "1,2.5,-3\n4e2, 5 ,.5\r\n0,-0.25,1e-3\n"
  local expected = { { 1, 2.5, -3 }, { 400, 5, 0.5 }, { 0, -0.25, 1e-3 } }
  for _, path in ipairs { write("a.csv", text), packed("b.csv", text) } do
    local t = data.loadtxt(path)
    expect_equal(t.dtype, "float32")
    expect_close(t, torch.tensor(expected, { dtype = "float32" }))
  end
  expect_equal(table.concat(data.loadtxt(write("one.csv", "7")).shape, ","), "1,1")
end)

test("loadtxt: what is wrong is said with file and line", function()
  local function expect(text, ...)
    local path = write("bad.csv", text)
    expect_error(function() data.loadtxt(path) end, "data_spec.lua:", ...)
  end
  expect("1,2\n3,x\n", "bad.csv:2:", "'x' is not a number")
  expect("a,b\n3,4\n", "bad.csv:1:", "'a'")
  expect("1,2\n3\n", "bad.csv:2:", "1 numbers", "2")
  expect("1,2\n3,4,5\n", "bad.csv:2:", "3 numbers")
  expect("1,,2\n", "bad.csv:1:", "''")
  expect("1,2\n3,\n", "bad.csv:2:", "''")
  expect("1,2\n\n3,4\n", "bad.csv:2:")
  expect("", "bad.csv", "no rows")
end)

test("a line of 2 GB is an error with its number, before it is read", function()
  local path = folder .. "/long"
  local file = io.open(path, "wb")
  file:write "a\n"
  file:seek("set", 2 ^ 31 + 100)  -- a hole
  file:write "\nb\n"
  file:close()
  for _, open in ipairs { redco.data.lines, redco.data.jsonl, redco.data.csv } do
    local set = open(path)
    local long = open == redco.data.csv and 1 or 2
    expect_error(function() return set[long] end, "data_spec.lua:", path .. ":2: a record of ",
      "expected at most 2147483392")
  end
  expect_error(function() redco.data.read(path) end, "data_spec.lua:", path, "2147483392")
  os.remove(path)
end)

local function idx(kind, shape, bytes)
  local header = { "\0\0", string.char(kind, #shape) }
  for _, size in ipairs(shape) do
    header[#header + 1] = string.char(math.floor(size / 2 ^ 24), math.floor(size / 2 ^ 16) % 256,
      math.floor(size / 256) % 256, size % 256)
  end
  return table.concat(header) .. bytes
end

test("idx: bytes with and without sign, of any number of dimensions, packed or not", function()
  local bytes = string.char(0, 1, 2, 127, 128, 255)
  local t = data.idx(write("images", idx(8, { 1, 2, 3 }, bytes)))
  expect_equal(t.dtype, "uint8")
  expect_close(t:long(), torch.tensor { { { 0, 1, 2 }, { 127, 128, 255 } } })
  t = data.idx(packed("labels-idx1-ubyte", idx(9, { 6 }, bytes)))
  expect_equal(t.dtype, "int8")
  expect_close(t:long(), torch.tensor { 0, 1, 2, 127, -128, -1 })
  t = data.idx(write("many", idx(8, { 300, 2 }, ("\7"):rep(600))))
  expect_equal(table.concat(t.shape, ","), "300,2")
  expect_equal(data.idx(write("none", idx(8, { 0, 5 }, ""))):numel(), 0)
end)

test("json: a null in a list keeps its place", function()
  local null = redco.null
  local found = data.json(write("nulls.json",
    '[[1, 2, null], [null, 2], [null], {"a": [1, null, 3]}]'))
  expect_equal(#found[1] + #found[2] + #found[3] + #found[4].a, 9)
  assert(found[1][3] == null and found[2][1] == null and found[2][2] == 2)
  local n = 0
  for _, entry in ipairs(found[4].a) do n = n + (entry == null and 10 or 1) end
  expect_equal(n, 12)
  assert(null ~= nil and null ~= false and type(null) == "userdata")
  local lines = data.jsonl(write("nulls.jsonl", '{"l": [null, true], "x": null}\nnull\n[null]\n'))
  assert(lines[1].l[1] == null and lines[1].l[2] == true and lines[1].x == nil)
  assert(lines[2] == null and lines[3][1] == null)
  for _, given in ipairs { found[1], found[2], found[3], { null } } do
    expect_error(function() torch.tensor(given) end, "data_spec.lua:", "redco.null",
      "a tensor has no nulls")
  end
  expect_error(function() data.default_collate { found[1], found[1] } end, "redco.null")
  -- In outputs, which are JSON, and in checkpoints it stays what it is.
  local deployer = redco.Deployer { seed = 1, workdir = folder .. "/nulls", verbose = false }
  deployer:save_outputs({ { list = { 1, null } } }, { desc = "nulls", step = 0 })
  assert(data.read(folder .. "/nulls/outputs_nulls.json"):find "null")
  local path = folder .. "/nulls.pt"
  torch.save({ list = { 1, null, "x" } }, path)
  assert(torch.load(path).list[2] == null)
end)

test("idx: what is wrong is said with the file", function()
  local function expect(bytes, ...)
    local path = write("bad-idx", bytes)
    expect_error(function() data.idx(path) end, "data_spec.lua:", "bad-idx", ...)
  end
  expect("", "not an IDX file")
  expect("\0\0\8", "not an IDX file")
  expect("\1\0\8\1\0\0\0\0", "not an IDX file")
  expect("\0\0\7\1\0\0\0\0", "not an IDX file")
  expect("P5 28 28", "not an IDX file")
  expect("\0\0\8\2\0\0\0\1", "inside its header")
  expect(idx(8, { 2, 3 }, "12345"), "5 bytes", "[2, 3]", "6")
  expect(idx(8, { 2, 3 }, "1234567"), "7 bytes")
  expect("\0\0\8\4" .. ("\255"):rep(16), "0 bytes")
  expect(idx(0x0D, { 1 }, "1234"), "float32", "one byte")
end)

testing.finish()
