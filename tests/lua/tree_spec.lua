-- redco.tree: order, nesting, structure, and what is refused.
local redco = require "redco"
local testing = require "testing"

local torch, tree = redco.torch, redco.tree
local test, expect_error, expect_equal = testing.test, testing.expect_error, testing.expect_equal

local function joined(list)
  local texts = {}
  for i, value in ipairs(list) do texts[i] = tostring(value) end
  return table.concat(texts, " ")
end

test("leaves come in the byte order of keys, lists from 1", function()
  local t = { b = 1, a = { 10, 20, { z = 30, y = 40 } }, B = 2, ["a.b"] = 3, _ = 4, aa = 5 }
  expect_equal(joined(tree.paths(t)), "B _ a.1 a.2 a.3.y a.3.z a.b aa b")
  expect_equal(joined(tree.leaves(t)), "2 4 10 20 40 30 3 5 1")
end)

test("the order does not depend on the order of insertion", function()
  local names = {}
  for i = 1, 200 do names[i] = ("key%d"):format(i) end
  local forward, backward = {}, {}
  for i = 1, 200 do
    forward[names[i]] = i
    backward[names[201 - i]] = 201 - i
  end
  expect_equal(joined(tree.leaves(forward)), joined(tree.leaves(backward)))
  table.sort(names)
  expect_equal(joined(tree.paths(backward)), joined(names))
end)

test("a list of more than 9 entries is walked by number, not by text", function()
  local t = {}
  for i = 1, 12 do t[i] = i * i end
  expect_equal(joined(tree.leaves { list = t }), "1 4 9 16 25 36 49 64 81 100 121 144")
  expect_equal(tree.paths({ list = t })[10], "list.10")
end)

test("a leaf alone, and branches that are empty", function()
  expect_equal(joined(tree.leaves(5)), "5")
  expect_equal(tree.paths(5)[1], "")
  expect_equal(#tree.leaves {}, 0)
  expect_equal(#tree.leaves { a = {}, b = { {} } }, 0)
  local mapped = tree.map(function(x) return x end, { a = {}, b = { {} } })
  expect_equal(type(mapped.a), "table")
  expect_equal(type(mapped.b[1]), "table")
end)

test("map keeps the structure, makes a new tree, and takes further trees", function()
  local a = { x = 1, list = { 2, { y = 3 } } }
  local b = { x = 10, list = { 20, { y = 30 } } }
  local c = { x = 100, list = { 200, { y = 300 } } }
  local sum = tree.map(function(...)
    local total = 0
    for _, value in ipairs { ... } do total = total + value end
    return total
  end, a, b, c)
  expect_equal(joined(tree.leaves(sum)), "222 333 111")
  expect_equal(joined(tree.paths(sum)), joined(tree.paths(a)))
  expect_equal(a.x, 1)
  assert(not rawequal(sum.list, a.list))
  local seen = {}
  tree.map(function(value) seen[#seen + 1] = value end, a)
  expect_equal(joined(seen), "2 3 1")
end)

test("tensors are leaves, and count counts their elements", function()
  local params = { w = torch.zeros { 3, 4 }, layers = { { b = torch.zeros { 5 } },
    torch.tensor(1) },
    name = "text", flag = true, number = 3 }
  expect_equal(tree.count(params), 18)
  expect_equal(tree.count {}, 0)
  local moved = tree.map(function(leaf)
    return torch.is_tensor(leaf) and leaf + 1 or leaf
  end, params)
  expect_equal(moved.w:sum():item(), 12)
  expect_equal(moved.name, "text")
  expect_equal(params.w:sum():item(), 0)
end)

test("unflatten puts back what flatten took apart", function()
  local t = { b = { 1, { c = 2 } }, a = { x = 3, y = {} } }
  local leaves, structure = tree.flatten(t)
  expect_equal(joined(leaves), "3 1 2")
  local back = tree.unflatten(structure, { "three", "one", "two" })
  expect_equal(back.b[1], "one")
  expect_equal(back.b[2].c, "two")
  expect_equal(back.a.x, "three")
  expect_equal(type(back.a.y), "table")
  local leaf, alone = tree.flatten(7)
  expect_equal(tree.unflatten(alone, leaf), 7)
  expect_equal(tree.unflatten(alone, { false }), false)
end)

test("unflatten refuses another number of leaves", function()
  local leaves, structure = tree.flatten { a = 1, b = 2, c = 3 }
  leaves[3] = nil
  expect_error(function() tree.unflatten(structure, leaves) end, "tree_spec.lua:", "tree.unflatten",
    "2")
  expect_error(function() tree.unflatten(structure, { 1, 2, 3, 4 }) end, "tree_spec.lua:",
    "3 leaves, 4 were given")
end)

test("keys that are no tree's are refused by name", function()
  expect_error(function() tree.leaves { 1, 2, x = 3 } end, "tree_spec.lua:", "list or a dictionary",
    "'x'")
  expect_error(function() tree.leaves { [1] = 1, [3] = 3 } end, "tree_spec.lua:", "key 3")
  expect_error(function() tree.leaves { a = { [true] = 1 } } end,
    "tree_spec.lua:", "true (boolean)")
  expect_error(function() tree.leaves { [0] = 1 } end, "key 0")
  expect_error(function() tree.leaves { [1.5] = 1 } end, "1.5")
  expect_error(function() tree.map(print, { 1, x = 2 }) end, "tree_spec.lua:")
  expect_error(function() tree.flatten { 1, x = 2 } end, "tree_spec.lua:")
end)

test("map refuses trees of another structure with the place", function()
  local function keep(x) return x end
  expect_error(function() tree.map(keep, { a = { 1, 2 } }, { a = { 1 } }) end, "tree_spec.lua:",
    "'a'", "2 entries", "tree 2 has 1")
  expect_error(function() tree.map(keep, { a = { 1 } }, { a = 1 }) end, "'a'", "a leaf")
  expect_error(function() tree.map(keep, { a = 1 }, { a = 1 }, { a = { 1 } }) end, "'a'",
    "tree 3 a table")
  expect_error(function() tree.map(keep, { a = { b = 1 } }, { a = { c = 1 } }) end,
    "tree 2 has no 'a.b'")
end)

test("an error inside the function of map passes, with its line", function()
  expect_error(function() tree.map(function() error "mine" end, { 1 }) end,
    "tree_spec.lua:", "mine")
end)

test("a tree deep within itself is walked", function()
  local root = {}
  local node = root
  for _ = 1, 150 do
    node.next = {}
    node = node.next
  end
  node.last = 5
  expect_equal(joined(tree.leaves(root)), "5")
  local copy = tree.map(function(x) return x + 1 end, root)
  expect_equal(joined(tree.leaves(copy)), "6")
end)

testing.finish()
