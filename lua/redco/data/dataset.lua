--- Data sets: examples made on access.
local fail = require "redco.fail"
local native = require "redco.native"
local registry = require "redco.registry"

local methods = registry.define("Dataset", [[
Dataset {}
Examples by number, each made on access: set[1] to set[#set].]], {})

local function check_size(what, size)
  if type(size) ~= "number" or size < 0 or size % 1 ~= 0 then
    fail("%s: expected a number of examples, got %s", what, size)
  end
end

-- A userdata, because LuaJIT ignores `__len` of tables. All its state is in its metatable, which is
-- copied with it to a worker.
-- `place(i)`, or nil, says where example i comes from.
local function new_dataset(size, get, fields, place)
  local set = newproxy(true)
  local meta = getmetatable(set)

  meta.__name = "Dataset"
  meta.place = place

  function meta.__len() return size end

  function meta.__index(_, key)
    if type(key) ~= "number" then
      return fields and fields[key] or methods[key]
        or fail("a data set has no method '%s'; examples have numbers", key)
    end
    if key >= 1 and key <= size and key % 1 == 0 then return get(key) end
    if key == 0 then fail "a data set has no example 0: they count from 1" end
  end

  function meta.__tostring() return ("Dataset(%.0f examples)"):format(size) end

  return set
end

--- Returns where example i of a list or a data set comes from.
local function place_of(set, i)
  local place = type(set) == "userdata" and getmetatable(set).place
  return place and place(i) or ("example %.0f"):format(i)
end

-- Returns the data set whose example i is example index_of(i) of a list or a data set.
local function view(set, size, index_of)
  return new_dataset(size, function(i) return set[index_of(i)] end, nil,
    function(i) return place_of(set, index_of(i)) end)
end

methods.place = registry.define("Dataset:place", [[
place(self, i: integer) -> string
Returns where example i comes from, for messages: "train.jsonl:17" for line 17 of a text file,
"train.parquet: row 17" for a row, and "example 17" where there is no file. Data sets made of others
by `map`, `select`, `slice`, `concat` and `split` know the places of theirs.]], function(self, i)
  if type(i) ~= "number" or i < 1 or i > #self or i % 1 ~= 0 then
    fail("Dataset:place: expected a number from 1 to %.0f, got %s", #self, native.describe(i))
  end
  return place_of(self, i)
end)

local dataset = registry.define("redco.data.dataset", [[
dataset(size, get) -> Dataset
Returns a data set of `size` examples. `ds[i]` calls get(i), with i from 1, on every access. `#ds`
is the size and `ds[i]` is nil beyond it, as in a list. `ds[0]` raises an error. Every function that
takes a list of examples takes a data set too.]], function(size, get)
  check_size("dataset", size)
  if type(get) ~= "function" then
    fail("dataset: expected a function, got %s", native.describe(get))
  end
  return new_dataset(size, get)
end)

methods.map = registry.define("Dataset:map", [[
map(self, f) -> Dataset
Returns the data set of f(example). f is called on every access.]], function(self, f)
  if type(f) ~= "function" then
    fail("Dataset:map: expected a function, got %s", native.describe(f))
  end
  return new_dataset(#self, function(i) return f(self[i]) end, nil,
    function(i) return place_of(self, i) end)
end)

methods.select = registry.define("Dataset:select", [[
select(self, indices) -> Dataset
Returns the examples with these numbers, a list, in the order of the list.]],
function(self, indices)
  if type(indices) ~= "table" then
    fail("Dataset:select: expected a list of numbers, got %s", native.describe(indices))
  end
  for i, index in ipairs(indices) do
    if type(index) ~= "number" or index < 1 or index > #self or index % 1 ~= 0 then
      fail("Dataset:select: entry %d is %s, expected a number from 1 to %.0f", i, index,
        #self)
    end
  end
  return view(self, #indices, function(i) return indices[i] end)
end)

methods.slice = registry.define("Dataset:slice", [[
slice(self, first, last = #self) -> Dataset
Returns the examples from number first to number last, both included.]], function(self, first, last)
  last = last or #self
  if type(first) ~= "number" or first < 1 or first % 1 ~= 0
    or type(last) ~= "number" or last > #self or last % 1 ~= 0 then
    fail("Dataset:slice: %s to %s; the examples are 1 to %.0f", first, last,
      #self)
  end
  return view(self, math.max(0, last - first + 1), function(i) return first + i - 1 end)
end)

methods.ipairs = registry.define("Dataset:ipairs", [[
ipairs(self) -> iterator
Iterates over the examples as `ipairs` does over a list: `for i, example in ds:ipairs() do`.]],
function(self)
  return function(_, i)
    if i < #self then return i + 1, self[i + 1] end
  end, nil, 0
end)

methods.tolist = registry.define("Dataset:tolist", [[
tolist(self) -> list
Returns a list of all examples, held in memory.]], function(self)
  local list = {}
  for i, example in self:ipairs() do list[i] = example end
  return list
end)

local function joined(sets, fields)
  local size, ends = 0, {}
  for i, set in ipairs(sets) do
    size = size + #set
    ends[i] = size
  end
  local function set_and_index(i)
    local low, high = 1, #ends  -- the first set that ends at i or later
    while low < high do
      local middle = math.floor((low + high) / 2)
      if ends[middle] < i then low = middle + 1 else high = middle end
    end
    return sets[low], i - (ends[low - 1] or 0)
  end
  return new_dataset(size, function(i)
    local set, index = set_and_index(i)
    return set[index]
  end, fields, function(i) return place_of(set_and_index(i)) end)
end

local concat = registry.define("redco.data.concat", [[
concat(sets) -> Dataset
Concatenates several data sets or lists.]], function(sets) return joined(sets) end)

return { new = new_dataset, dataset = dataset, concat = concat, joined = joined,
  place_of = place_of, view = view }
