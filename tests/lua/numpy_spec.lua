-- Arrays as NumPy stores them.
local redco = require "redco"
local testing = require "testing"

local data, torch = redco.data, redco.torch
local test, expect_error, expect_equal = testing.test, testing.expect_error, testing.expect_equal

-- Made by tests/tools/make_numpy_cases.py.
local cases = "numpy_cases/"
local folder = testing.folder()

local function words(t)
  return ("%s [%s] %s"):format(t.dtype, table.concat(t.shape, ","),
    table.concat(t:reshape { -1 }:tolist(), " "))
end

test("arrays of each type, in both orders, from an archive", function()
  local arrays = data.npz(cases .. "stored.npz")
  local small = " [2,3] -4 -1 2 5 8 11"
  for name, dtype in pairs { i1 = "int8", i2 = "int16", i4 = "int32", i8 = "int64",
    f2 = "float16", f4 = "float32", f8 = "float64" } do
    expect_equal(words(arrays[name]), dtype .. small)
  end
  expect_equal(words(arrays.b1:to "uint8"), "uint8 [2,3] 1 0 1 0 1 0")
  expect_equal(words(arrays.u1), "uint8 [2,3] 250 251 252 253 254 255")
  expect_equal(words(arrays.u2), "int32 [2,3] 65530 65531 65532 65533 65534 65535")
  expect_equal(arrays.u4.dtype .. " " .. arrays.u4:max():item(), "int64 4294967295")
  expect_equal(words(torch.view_as_real(arrays.c8)[1][2]), "float32 [2] 5 1")
  expect_equal(words(arrays.fortran), "float64 [2,3] 0 1 2 3 4 5")
  assert(torch.equal(arrays.fortran3, torch.arange(24):float():view { 2, 3, 4 }))
  expect_equal(words(arrays.scalar), "float32 [] 2.5")
  expect_equal(words(arrays.empty), "float32 [0,3] ")
end)

test("compressed archives, single arrays, and version 2 of the format", function()
  local arrays = data.npz(cases .. "compressed.npz")
  expect_equal(words(arrays.counts), "int64 [2,3] 0 1 2 3 4 5")
  expect_equal(arrays.zeros:numel() + arrays.zeros:sum():item(), 500)
  expect_equal(words(data.npy(cases .. "matrix.npy")), "float32 [2,3] 0 1 2 3 4 5")
  expect_equal(words(data.npy(cases .. "version2.npy")), "int64 [2,3] 0 1 2 3 4 5")
end)

test("arrays that are not supported are errors that say why", function()
  for name, reason in pairs { objects = "pickles", big_endian = ">f4", text = "<U2",
    records = "with fields", uint64 = "<u8" } do
    expect_error(function() data.npy(cases .. name .. ".npy") end, "numpy_spec.lua:",
      name .. ".npy", reason)
  end
  expect_error(function() data.npy(3) end, "numpy_spec.lua:", "number")
  expect_error(function() data.npy(folder .. "/none.npy") end, "numpy_spec.lua:", "No such file")
  expect_error(function() data.npz(cases .. "matrix.npy") end, "numpy_spec.lua:", "zip archive")
end)

test("a file cut short at any byte is an error", function()
  local path = folder .. "/short"
  for _, name in ipairs { "matrix.npy", "compressed.npz" } do
    local whole = data.read(cases .. name)
    local step = name == "matrix.npy" and 1 or 7
    for n = 0, #whole - 1, step do
      testing.write(path, whole:sub(1, n))
      expect_error(function() data[name:match "%a+$"](path) end, "numpy_spec.lua:", path)
    end
    testing.write(path, whole .. "x")
    expect_error(function() data[name:match "%a+$"](path) end, "numpy_spec.lua:", path)
  end
end)

test("a damaged header or archive is an error", function()
  local whole, path = data.read(cases .. "matrix.npy"), folder .. "/damaged.npy"
  for from, to in pairs { ["%(2, 3%)"] = "(2, 9)", ["%(2, 3%), "] = "(-2, 3),",
    ["'descr'"] = "'decsr'", ["False"] = "Falso", ["NUMPY"] = "NUMPI", ["\1%z"] = "\9\0",
    ["%(2, 3%), }     "] = "(9999999999, )}" } do
    testing.write(path, (whole:gsub(from, to, 1)))
    expect_error(function() data.npy(path) end, "numpy_spec.lua:", path)
  end
  local archive = data.read(cases .. "compressed.npz")
  testing.write(path, archive:sub(1, 60) .. "\255" .. archive:sub(62))
  expect_error(function() data.npz(path) end, "numpy_spec.lua:", path)
end)

testing.finish()
