--- Sets of examples that are made when they are asked for.
local fail = require "redco.fail"
local registry = require "redco.registry"

local methods = registry.define("Dataset", [[
Dataset {}
Examples by number, each made when it is asked for. They are set[1] to set[#set].]], {})

local function check_size(what, size)
  if type(size) ~= "number" or size < 0 or size % 1 ~= 0 then
    fail("%s: expected a number of examples, got %s", what, tostring(size))
  end
end

-- A userdata, for `#` asks no table of LuaJIT's how long it is. Its metatable holds all of it, and
-- goes with it where it is copied to a worker.
local function new_dataset(size, get, fields)
  local set = newproxy(true)
  local meta = getmetatable(set)

  meta.__name = "Dataset"

  function meta.__len() return size end

  function meta.__index(_, key)
    if type(key) ~= "number" then
      return fields and fields[key] or methods[key]
        or fail("a data set has examples, by number, and methods; there is no '%s'", tostring(key))
    end
    if key >= 1 and key <= size and key % 1 == 0 then return get(key) end
  end

  function meta.__tostring() return ("Dataset(%.0f examples)"):format(size) end

  return set
end

local dataset = registry.define("redco.data.dataset", [[
dataset(size, get) -> Dataset
A set of `size` examples of which `ds[i]`, from 1 on, is what get(i) returns each time it is asked
for. It has its size, `#ds`, as a list has, nil beyond it, and methods; it is taken wherever a list
of examples is.]], function(size, get)
  check_size("dataset", size)
  if type(get) ~= "function" then fail("dataset: expected a function, got a %s", type(get)) end
  return new_dataset(size, get)
end)

methods.map = registry.define("Dataset:map", [[
map(self, f) -> Dataset
The set of f(example), called each time one is asked for.]], function(self, f)
  if type(f) ~= "function" then fail("Dataset:map: expected a function, got a %s", type(f)) end
  return new_dataset(#self, function(i) return f(self[i]) end)
end)

methods.select = registry.define("Dataset:select", [[
select(self, indices) -> Dataset
The examples with these numbers, a list, in its order.]], function(self, indices)
  if type(indices) ~= "table" then
    fail("Dataset:select: expected a list of numbers, got a %s", type(indices))
  end
  for i, index in ipairs(indices) do
    if type(index) ~= "number" or index < 1 or index > #self or index % 1 ~= 0 then
      fail("Dataset:select: entry %d is %s, the examples are 1 to %.0f", i, tostring(index), #self)
    end
  end
  return new_dataset(#indices, function(i) return self[indices[i]] end)
end)

methods.slice = registry.define("Dataset:slice", [[
slice(self, first, last = #self) -> Dataset
The examples first to last.]], function(self, first, last)
  last = last or #self
  if type(first) ~= "number" or first < 1 or first % 1 ~= 0
    or type(last) ~= "number" or last > #self or last % 1 ~= 0 then
    fail("Dataset:slice: %s to %s; the examples are 1 to %.0f", tostring(first), tostring(last),
      #self)
  end
  return new_dataset(math.max(0, last - first + 1), function(i) return self[first + i - 1] end)
end)

methods.ipairs = registry.define("Dataset:ipairs", [[
ipairs(self) -> iterator
`for i, example in ds:ipairs() do`, as ipairs does for a list.]], function(self)
  return function(_, i)
    if i < #self then return i + 1, self[i + 1] end
  end, nil, 0
end)

methods.tolist = registry.define("Dataset:tolist", [[
tolist(self) -> list
All examples, held in memory.]], function(self)
  local list = {}
  for i, example in self:ipairs() do list[i] = example end
  return list
end)

local concat = registry.define("redco.data.concat", [[
concat(sets) -> Dataset
The examples of several sets or lists, one after another.]], function(sets)
  local size, ends = 0, {}
  for i, set in ipairs(sets) do
    size = size + #set
    ends[i] = size
  end
  return new_dataset(size, function(i)
    local low, high = 1, #ends  -- the first set that ends at i or later
    while low < high do
      local middle = math.floor((low + high) / 2)
      if ends[middle] < i then low = middle + 1 else high = middle end
    end
    return sets[low][i - (ends[low - 1] or 0)]
  end)
end)

return { new = new_dataset, dataset = dataset, concat = concat }
