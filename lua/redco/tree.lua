--- Trees: nested tables with tensors and plain values as leaves. A table with keys 1..n is a list,
--- visited in order. The keys of any other table are strings, visited in byte order, so every
--- process visits a tree in the same order.
local fail = require "redco.fail"
local native = require "redco.native"
local registry = require "redco.registry"
local strict = require "redco.strict"
local torch = require "redco.torch"

local tree = {}

local function is_branch(value)
  return type(value) == "table"
end

-- Returns the keys of a table in the order of visits.
local function keys_of(branch)
  local keys, n = {}, #branch
  for key in pairs(branch) do
    if type(key) == "string" then
      keys[#keys + 1] = key
    elseif not (type(key) == "number" and key >= 1 and key <= n and key % 1 == 0) then
      fail("the keys of a tree must be strings, or 1..n without holes: got the key %s (%s)",
        key, type(key))
    end
  end
  if n == 0 then
    table.sort(keys)
    return keys
  end
  if #keys > 0 then
    fail("a table of a tree must be a list or a dictionary, not both: it has %d positions and the "
      .. "key '%s'", n, keys[1])
  end
  for i = 1, n do keys[i] = i end
  return keys
end

local function walk(node, path, visit)
  if not is_branch(node) then return visit(path, node) end
  for _, key in ipairs(keys_of(node)) do
    walk(node[key], path == "" and tostring(key) or path .. "." .. key, visit)
  end
end

local function map_nodes(f, first, others, path)
  if not is_branch(first) then
    local rest = {}
    for i = 1, #others do
      if is_branch(others[i]) then
        fail("tree.map: at '%s' tree 1 has a leaf and tree %d a table", path, i + 1)
      end
      rest[i] = others[i]
    end
    return f(first, unpack(rest, 1, #others))
  end
  local keys, result = keys_of(first), {}
  for i = 1, #others do
    if not is_branch(others[i]) or #keys_of(others[i]) ~= #keys then
      fail("tree.map: at '%s' tree 1 has %d entries, tree %d has %s", path, #keys, i + 1,
        is_branch(others[i]) and #keys_of(others[i]) .. "" or "a leaf")
    end
  end
  for _, key in ipairs(keys) do
    local below, inner = {}, path == "" and tostring(key) or path .. "." .. key
    for i = 1, #others do
      below[i] = others[i][key]
      if below[i] == nil then
        fail("tree.map: tree %d has no '%s'", i + 1, inner)
      end
    end
    result[key] = map_nodes(f, first[key], below, inner)
  end
  return result
end

tree.map = registry.define("redco.tree.map", [[
map(f, tree, ...) -> tree
Returns a tree of the same structure with f(leaf, ...) in place of each leaf. Further trees must
have the structure of the first; their leaves are the further arguments of f. Leaves are visited in
the order of `leaves`.]],
function(f, first, ...)
  local meta = getmetatable(f)
  if type(f) ~= "function" and not (type(meta) == "table" and meta.__call) then
    fail("tree.map: expected a function and then trees, tree.map(f, tree), got %s first",
      native.describe(f))
  end
  return map_nodes(f, first, { ... }, "")
end)

tree.leaves = registry.define("redco.tree.leaves", [[
leaves(tree) -> list
Returns the leaves in order: lists by position, other tables by the bytes of their keys.]],
function(root)
  local leaves = {}
  walk(root, "", function(_, leaf) leaves[#leaves + 1] = leaf end)
  return leaves
end)

tree.paths = registry.define("redco.tree.paths", [[
paths(tree) -> list of strings
Returns the path of each leaf, keys and positions joined by dots, in the order of `leaves`.]],
function(root)
  local paths = {}
  walk(root, "", function(path) paths[#paths + 1] = path end)
  return paths
end)

local function structure_of(node)
  if not is_branch(node) then return false end
  local keys = keys_of(node)
  local children = {}
  for i, key in ipairs(keys) do children[i] = structure_of(node[key]) end
  return { keys = keys, children = children }
end

tree.flatten = registry.define("redco.tree.flatten", [[
flatten(tree) -> leaves, structure
Returns the leaves, in the order of `leaves`, and the structure that `tree.unflatten` needs.]],
function(root)
  return tree.leaves(root), structure_of(root)
end)

tree.unflatten = registry.define("redco.tree.unflatten", [[
unflatten(structure, leaves) -> tree
Rebuilds the tree that `tree.flatten` took apart, with the given leaves. Raises an error if their
number differs.]],
function(structure, leaves)
  local used = 0
  local function build(node)
    if not node then
      used = used + 1
      if leaves[used] == nil then
        fail("tree.unflatten: the structure has more leaves than the %d given", #leaves)
      end
      return leaves[used]
    end
    local result = {}
    for i, key in ipairs(node.keys) do result[key] = build(node.children[i]) end
    return result
  end
  local root = build(structure)
  if used ~= #leaves then
    fail("tree.unflatten: the structure has %d leaves, %d were given", used, #leaves)
  end
  return root
end)

tree.count = registry.define("redco.tree.count", [[
count(tree) -> number
Returns the number of elements of all tensors of a tree, for example of the parameters.]],
function(root)
  local n = 0
  walk(root, "", function(_, leaf)
    if torch.is_tensor(leaf) then n = n + leaf:numel() end
  end)
  return n
end)

return registry.define("redco.tree", [[
redco.tree
Trees: nested tables with tensors and plain values as leaves. A table with keys 1..n is a list,
visited in order. The keys of any other table are strings, visited in byte order, so every process
visits a tree in the same order.]], strict("redco.tree", tree))
