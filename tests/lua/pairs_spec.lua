-- The order in which pairs visits the keys of a table, the same on all processes.
local redco = require "redco"
local testing = require "testing"

local torch = redco.torch
local test, expect_equal, expect_error = testing.test, testing.expect_equal, testing.expect_error

local function visited(t)
  local texts = {}
  for key, value in pairs(t) do texts[#texts + 1] = tostring(key) .. "=" .. tostring(value) end
  return table.concat(texts, " ")
end

test("names come sorted by their bytes, in whatever order they were set", function()
  expect_equal(visited { b = 1, a = 2, B = 3, _ = 4, aa = 5, [""] = 6 }, "=6 B=3 _=4 a=2 aa=5 b=1")
  local names, forward, backward = {}, {}, {}
  for i = 1, 200 do names[i] = ("key%d"):format(i) end
  for i = 1, 200 do
    forward[names[i]] = 0
    backward[names[201 - i]] = 0
  end
  expect_equal(visited(forward), visited(backward))
  table.sort(names)
  expect_equal(visited(forward), table.concat(names, "=0 ") .. "=0")
end)

test("numbers come first, in ascending order, then names, false and true", function()
  expect_equal(visited { 10, 20, 30 }, "1=10 2=20 3=30")
  expect_equal(visited { 10, nil, 30, x = 1 }, "1=10 3=30 x=1")
  expect_equal(visited { 10, 20, [0] = 0, [-1.5] = -1, [2 ^ 40] = 40, z = 1, [true] = 2, a = 3,
    [false] = 4 }, "-1.5=-1 0=0 1=10 2=20 1099511627776=40 a=3 z=1 false=4 true=2")
  local backward = {}
  for i = 12, 1, -1 do backward[i] = i end
  expect_equal(visited(backward), "1=1 2=2 3=3 4=4 5=5 6=6 7=7 8=8 9=9 10=10 11=11 12=12")
end)

test("keys that are tables or functions come last", function()
  local key = setmetatable({}, { __tostring = function() return "table" end })
  expect_equal(visited { [key] = 1, a = 2, [5] = 3 }, "5=3 a=2 table=1")
end)

test("a table from a JSON file keeps the order of the file, new names come last", function()
  local path = os.tmpname()
  local file = assert(io.open(path, "w"))
  file:write '{"b": 1, "n": null, "a": {"d": 2, "c": 3}, "e": [4, null, 5]}'
  file:close()
  local read = redco.data.json(path)
  os.remove(path)
  expect_equal(visited(read.a), "d=2 c=3")
  expect_equal(visited(read.e), ("1=4 2=%s 3=5"):format(tostring(redco.null)))
  read[7], read.A, read.b = "number", "new", nil
  local keys = {}
  for key in pairs(read) do keys[#keys + 1] = tostring(key) end
  expect_equal(table.concat(keys, " "), "7 a e A")
end)

test("the body of a loop may set fields", function()
  local t, seen = { a = 1, b = 2, c = 3, d = 4 }, {}
  for key, value in pairs(t) do
    seen[#seen + 1] = key .. value
    t.c, t.d, t["new" .. key] = nil, 40, 0
  end
  expect_equal(table.concat(seen, " "), "a1 b2 d40")
  expect_equal(visited(t), "a=1 b=2 d=40 newa=0 newb=0 newd=0")
  for key in pairs(t) do t[key] = nil end
  expect_equal(next(t), nil)
  local list, n = { 1, 2 }, 0
  for i in pairs(list) do
    list[i + 2], n = i, n + 1
    list[2] = i == 1 and list[2] or nil
  end
  expect_equal(n, 2)
end)

test("loops nest, and a loop may be left and begun again", function()
  local t, texts = { x = 1, y = 2, z = 3 }, {}
  for a in pairs(t) do
    for b in pairs(t) do
      if b > a then break end
      texts[#texts + 1] = a .. b
    end
  end
  expect_equal(table.concat(texts, " "), "xx yx yy zx zy zz")
  local iterator, state, key = pairs(t)
  local value
  key, value = iterator(state, key)
  expect_equal(key .. value, "x1")
end)

test("the iterator is never next, which LuaJIT could not exchange for another one", function()
  for _, t in ipairs { {}, { 1, 2 }, { a = 1 }, { a = 1, b = 2 } } do
    assert(pairs(t) ~= next, "it is next")
  end
end)

test("metamethods are not called", function()
  local meta = { __index = function() error "called" end, __len = error }
  local t = setmetatable({ a = 1, b = 2 }, meta)
  expect_equal(visited(t), "a=1 b=2")
end)

test("only tables have pairs", function()
  expect_error(function() return pairs(nil) end, "bad argument #1 to 'pairs'", "got nil")
  expect_error(function() return pairs() end, "bad argument #1 to 'pairs'", "got no value")
  expect_error(function() return pairs(torch.ones { 2 }) end, "bad argument #1 to 'pairs'",
    "got userdata)")
end)

testing.finish()
