-- Parquet files as pyarrow and Hugging Face datasets write them.
local redco = require "redco"
local testing = require "testing"

local data, torch = redco.data, redco.torch
local test, expect_error, expect_equal = testing.test, testing.expect_error, testing.expect_equal

-- Made by tests/tools/make_parquet_cases.py.
local cases = "parquet_cases/"
local folder = testing.folder()

-- Tensors as lists.
local function plain(value)
  if torch.is_tensor(value) then return value:tolist() end
  if type(value) ~= "table" then return value end
  local result = {}
  for key, entry in pairs(value) do result[key] = plain(entry) end
  return result
end

local function expect_same(actual, expected, where)
  if type(expected) ~= "table" then
    if actual ~= expected then
      error(("%s is %s, expected %s"):format(where, tostring(actual), tostring(expected)), 2)
    end
    return
  end
  for key, value in pairs(expected) do expect_same(actual[key], value, where .. "." .. key) end
  for key in pairs(actual) do
    if expected[key] == nil then error(("%s.%s is not expected"):format(where, key), 2) end
  end
end

local rows = data.json(cases .. "rows.json")

for _, name in ipairs { "plain", "snappy", "zstd_v2", "gzip_checked", "small_pages" } do
  test("every kind of column: " .. name, function()
    local set = data.parquet(cases .. name .. ".parquet")
    expect_equal(#set, #rows)
    for _, i in ipairs { 7, 1, 2, 3, 4, 5, 6 } do
      expect_same(plain(set[i]), rows[i], name .. " row " .. i)
    end
  end)
end

test("types, columns and shards", function()
  local path = cases .. "snappy.parquet"
  local set = data.parquet({ path, path }, { columns = { "numbers", "holes", "flags" } })
  expect_equal(#set, 14)
  expect_equal(table.concat(set.columns, " "), "numbers holes flags")
  for i, expected in pairs { "int64 [3]", "int64 [0]", [8] = "int64 [3]" } do
    local t = set[i].numbers
    expect_equal(("%s [%s]"):format(t.dtype, table.concat(t.shape, ",")), expected)
  end
  expect_equal(set[2].holes.dtype .. set[1].flags.dtype, "float32bool")
  expect_equal(set[3].numbers, nil)
  expect_equal(set[1].text, nil)
  set[1].numbers:zero_()  -- not that of the file
  expect_equal(set[1].numbers:sum():item(), 6)
end)

test("long columns, in order and shuffled, with little memory", function()
  local expected = data.json(cases .. "long.json")
  for _, max_memory in ipairs { 2 ^ 32, 2 ^ 18 } do
    local set = data.parquet(cases .. "long.parquet", { max_memory = max_memory })
    expect_equal(#set, 5000)
    local sums = { count = 0, some = 0, flag = 0, list = 0 }
    for _, row in set:ipairs() do
      expect_equal(row.same, "x")
      sums.count, sums.some = sums.count + row.count, sums.some + (row.some or 0)
      sums.flag = sums.flag + (row.flag and 1 or 0)
      sums.list = sums.list + row.list:sum():item()
    end
    for name, sum in pairs(expected) do expect_equal(sums[name], sum) end
    for _, i in ipairs { 4999, 1, 2000, 2001, 4001 } do expect_equal(set[i].count, i - 1) end
  end
  expect_error(function()
    return data.parquet(cases .. "long.parquet", { max_memory = 2 ^ 16 })[1]
  end, "parquet_spec.lua:", "max_memory")
end)

test("files of Hugging Face datasets: features, images, training", function()
  local set = data.parquet(cases .. "images.parquet")
  expect_equal(table.concat(set.features.label.names, " "), "cat dog")
  expect_equal(table.concat(set[2].image.shape, " "), "3 2 3")
  expect_equal(set[3].image.dtype .. set[3].image:float():mean():item(), "uint880")
  expect_equal(set[2].label, 1)
  local raw = data.parquet(cases .. "images.parquet", { decode = false })
  assert(raw[1].image.bytes:find "^.PNG")
  local batch = data.default_collate(set:map(function(row)
    return { image = row.image, label = row.label }
  end):tolist())
  expect_equal(table.concat(batch.image.shape, " ") .. " " .. batch.label:sum():item(),
    "3 3 2 3 1")
end)

test("what is not supported is an error that says why", function()
  for name, reasons in pairs {
    decimal = { "the column 'd'", "decimals", "select other columns" },
    lz4 = { "the column 'x'", "LZ4 5 or 7", "not supported" },
    delta = { "the column 'x'", "DELTA_BINARY_PACKED", "not supported" },
    uint64 = { "x: the number 18446744073709551615 is more than the largest int64" },
  } do
    expect_error(function() return data.parquet(cases .. name .. ".parquet")[1] end,
      "parquet_spec.lua:", name .. ".parquet", unpack(reasons))
  end
  expect_equal(data.parquet(cases .. "decimal.parquet", { columns = { "x" } })[2].x, 2)
  expect_error(function() data.parquet(cases .. "plain.parquet", { columns = { "texts" } }) end,
    "it has no column 'texts', but i8, u8")
  expect_error(function() data.parquet(cases .. "plain.parquet", { column = {} }) end, "'column'")
  expect_error(function() data.parquet(cases .. "rows.json") end, "does not end in PAR1")
  expect_error(function() data.parquet(3) end, "expected a path, got number 3")
  expect_error(function() data.parquet(folder .. "/none") end, "No such file")
end)

test("a file that is cut short or changed anywhere is an error or another file", function()
  local whole = data.read(cases .. "gzip_checked.parquet")
  local path = folder .. "/damaged.parquet"
  local function read_all(bytes)
    testing.write("damaged.parquet", bytes)
    return pcall(function() return data.parquet(path):tolist() end)
  end
  assert(read_all(whole))
  for n = 0, #whole - 1, 97 do assert(not read_all(whole:sub(1, n))) end
  local n_found = 0
  for at = 4, #whole - 1, 61 do
    local byte = string.char((whole:byte(at) + 85) % 256)
    local is_read = read_all(whole:sub(1, at - 1) .. byte .. whole:sub(at + 1))
    n_found = n_found + (is_read and 0 or 1)
  end
  assert(n_found > 50, n_found)
end)

testing.finish()
