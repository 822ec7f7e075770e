--- The texts that replace <name> in a row's template. place.NAME(g, v) returns the text, or nil if
--- the operator does not apply; v keeps what was chosen, so that a second <name> is the same.
local place = {}

local function numbers(list) return table.concat(list, ", ") end

--- The size of the dimension d of x, negative ones from the end.
local function size_of(x, d) return x.shape[d < 0 and x.ndim + d + 1 or d + 1] end

local function broadcasts(a, b)
  for i = 0, math.min(a.ndim, b.ndim) - 1 do
    local m, n = a.shape[a.ndim - i], b.shape[b.ndim - i]
    if m ~= n and m ~= 1 and n ~= 1 then return false end
  end
  return true
end

--- Whether b broadcasts to the shape of x.
local function fits(x, b)
  if b.ndim > x.ndim then return false end
  for i = 0, b.ndim - 1 do
    local n = b.shape[b.ndim - i]
    if n ~= 1 and n ~= x.shape[x.ndim - i] then return false end
  end
  return true
end

local function same_shape(a, b)
  if a.ndim ~= b.ndim then return false end
  for i = 1, a.ndim do if a.shape[i] ~= b.shape[i] then return false end end
  return true
end

--- The dimension <d>, chosen now if the template has it later; nil without dimensions.
local function the_dimension(g, v)
  if not v.d then v.fixed.d = place.d(g, v) end
  return v.d
end

local function another(g, v, is_right)
  local found = g:pick(function(info)
    -- Now and then another dtype, which is promoted or refused.
    return (info.dtype == v.x.dtype or info.kind == v.x.kind and g.random:chance(0.3))
      and is_right(info)
  end)
  return found and found.name
end

function place.x(_, v) return v.x.name end
function place.y(g, v) return another(g, v, function(info) return broadcasts(v.x, info) end) end
function place.b(g, v) return another(g, v, function(info) return fits(v.x, info) end) end
function place.s(g, v)
  return another(g, v, function(info) return same_shape(v.x, info) and info.dtype == v.x.dtype end)
end

--- Like x but for the dimension d.
function place.other(g, v)
  if not the_dimension(g, v) then return nil end
  return another(g, v, function(info)
    if info.ndim ~= v.x.ndim or info.dtype ~= v.x.dtype then return false end
    for i = 1, info.ndim do
      if i ~= v.d + 1 and info.shape[i] ~= v.x.shape[i] then return false end
    end
    return true
  end)
end

local function dimension(name)
  return function(g, v)
    if v.x.ndim == 0 then return nil end
    v[name] = g.random:below(v.x.ndim)
    return tostring(g.random:chance(0.2) and v[name] - v.x.ndim or v[name])
  end
end
place.d, place.e = dimension "d", dimension "e"

--- Dimensions, at least one.
function place.D(g, v)
  local list = {}
  for d = 0, v.x.ndim - 1 do if g.random:chance(0.5) then list[#list + 1] = d end end
  if #list == 0 then return v.x.ndim > 0 and tostring(g.random:below(v.x.ndim)) or nil end
  return numbers(list)
end

--- A place for a new dimension.
function place.u(g, v) return v.x.ndim < 5 and tostring(g.random:below(v.x.ndim + 1)) or nil end

--- How the processes may share x.
function place.placement(g, v) return g:placement(v.x.shape) end

--- One of the functions of script_functions.pt that draw nothing.
function place.script(g) return g.random:choice { "0", "1", "2", "4", "5", "6" } end

function place.k(g) return g.random:chance(0.4) and ", true" or "" end
function place.n(g) return tostring(g.random:between(1, 3)) end
function place.o(g) return tostring(g.random:between(-1, 1)) end
function place.part(g) return tostring(g.random:between(1, 3)) end
function place.c(g, v)
  return v.x.kind == "int" and tostring(g.random:between(-2, 4))
    or g.random:choice { "0.5", "-1.25", "2", "3.5", "0" }
end
function place.seed(g) return tostring(g:seed()) end
function place.accumulate(g) return tostring(g.random:chance(0.6)) end

function place.i(g, v)
  local size = the_dimension(g, v) and size_of(v.x, v.d) or 0
  if size == 0 then return nil end
  local i = g.random:below(size)
  return tostring(g.random:chance(0.25) and i - size or i)
end

function place.i0(g, v)
  local size = v.x.ndim > 0 and v.x.shape[1] or 0
  if size == 0 then return nil end
  local i = g.random:below(size)
  return tostring(g.random:chance(0.25) and i - size or i)
end

function place.last(g, v)
  local size = v.x.ndim > 0 and size_of(v.x, -1) or 0
  return size > 0 and tostring(g.random:below(size)) or nil
end

function place.start(g, v)
  if not the_dimension(g, v) then return nil end
  v.start = g.random:below(size_of(v.x, v.d) + 1)
  return tostring(v.start)
end
function place.length(g, v)
  if not the_dimension(g, v) then return nil end
  v.length = g.random:between(0, size_of(v.x, v.d) - (v.start or 0))
  if v.length == 0 and (not v.start or g.random:chance(0.8)) then v.length = 1 end
  return tostring(v.length)
end
function place.stop(g, v)
  if not v.start then return nil end
  return tostring(g.random:between(v.start, size_of(v.x, v.d) + 1))
end
function place.step(g) return tostring(g.random:between(1, 3)) end
function place.some(g, v)
  local size = the_dimension(g, v) and size_of(v.x, v.d) or 0
  return size > 0 and tostring(g.random:between(1, size)) or nil
end

local function slice(g, size)
  if g.random:chance(0.2) then return "{}" end
  local start = g.random:below(size + 1)
  local step = g.random:chance(0.4) and ", " .. g.random:between(1, 3) or ""
  return ("{ %d, %d%s }"):format(start, g.random:between(start, size), step)
end
function place.slice(g, v) return v.x.ndim > 0 and slice(g, v.x.shape[1]) or nil end
function place.slice1(g, v) return v.x.ndim > 1 and slice(g, v.x.shape[2]) or nil end

function place.order(g, v)
  local list = {}
  for d = 0, v.x.ndim - 1 do table.insert(list, g.random:between(1, #list + 1), d) end
  return numbers(list)
end

--- Other sizes of as many elements: neighbours are joined, or one is split.
function place.sizes(g, v)
  local list = { unpack(v.x.shape) }
  for _ = 1, g.random:between(1, 2) do
    if #list > 1 and g.random:chance(0.5) then
      local at = g.random:between(1, #list - 1)
      list[at] = list[at] * table.remove(list, at + 1)
    elseif #list > 0 and #list < 5 then
      local at = g.random:between(1, #list)
      local size, factor = list[at], g.random:choice { 1, 2, 2, 3 }
      if size > 0 and size % factor == 0 then
        list[at] = size / factor
        table.insert(list, at + g.random:below(2), factor)
      end
    end
  end
  if #list > 0 and v.x.numel > 0 and g.random:chance(0.2) then list[g.random:between(1,
    #list)] = -1 end
  v.sizes = list
  return numbers(list)
end

--- The contiguous strides for <sizes>.
function place.strides(_, v)
  local list, stride = {}, 1
  for i = #v.sizes, 1, -1 do
    if v.sizes[i] < 0 then return nil end
    list[i], stride = stride, stride * math.max(v.sizes[i], 1)
  end
  return numbers(list)
end

function place.expanded(g, v)
  local list = {}
  for i, size in ipairs(v.x.shape) do list[i] = size == 1 and g.random:between(1, 3) or size end
  if #list < 4 and g.random:chance(0.5) then table.insert(list, 1, g.random:between(1, 3)) end
  return numbers(list)
end

function place.tiles(g, v)
  local list = {}
  for i = 1, v.x.ndim do list[i] = g.random:between(1, 2) end
  if g.random:chance(0.3) then table.insert(list, 1, 2) end
  return numbers(list)
end

function place.factors(g, v)
  local size = the_dimension(g, v) and size_of(v.x, v.d) or 0
  local factor = g.random:choice { 1, 2, 3 }
  return size % factor == 0 and g.random:choice { factor .. ", -1", "-1, " .. factor } or nil
end

function place.pieces(g, v)
  if not the_dimension(g, v) then return nil end
  local size = size_of(v.x, v.d)
  local first = g.random:between(0, size)
  return first .. ", " .. size - first
end

-- Indices ---------------------------------------------------------------------------------------

--- n indices below size as a tensor that may be sharded.
local function index_of(g, size, n, is_distinct)
  if size == 0 then return nil end
  local list = {}
  if is_distinct then
    for i = 0, size - 1 do table.insert(list, g.random:between(1, #list + 1), i) end
    for _ = n + 1, size do table.remove(list) end
  else
    for i = 1, n do list[i] = g.random:below(size) end
  end
  local text = #list == 0 and "torch.tensor({}, { dtype = 'int64' })"
    or ("torch.tensor { %s }"):format(numbers(list))
  if g.random:chance(0.3) then text = g:sharded(text, { #list }) end
  return text
end

local function index_at(dim)
  return function(g, v)
    local d = dim < 0 and v.x.ndim + dim or dim
    if d < 0 or d >= v.x.ndim then return nil end
    if v.index_n == nil then v.index_n = g.random:chance(0.1) and g.random:between(0, 1)
      or g.random:between(1, 4) end
    return index_of(g, v.x.shape[d + 1], v.index_n)
  end
end
place.index0, place.index1, place.index2, place.index_last = index_at(0), index_at(1), index_at(2),
  index_at(-1)

function place.index(g, v)
  if not the_dimension(g, v) then return nil end
  v.index_n = v.index_n or g.random:between(1, 4)
  return index_of(g, size_of(v.x, v.d), v.index_n)
end
function place.distinct_index(g, v)
  if not the_dimension(g, v) then return nil end
  v.index_n = g.random:between(1, math.max(1, size_of(v.x, v.d)))
  return index_of(g, size_of(v.x, v.d), v.index_n, true)
end
function place.flat_index(g, v)
  v.index_n = g.random:between(1, 4)
  return index_of(g, v.x.numel, v.index_n)
end

local function values(g, v, sizes)
  return g:sharded(("randn(%d, { %s }, %q)"):format(g:seed(), numbers(sizes), v.x.dtype), sizes)
end
function place.flat_values(g, v) return values(g, v, { v.index_n }) end
function place.rows(g, v)
  local sizes = { unpack(v.x.shape) }
  sizes[v.d + 1] = v.index_n
  return values(g, v, sizes)
end
function place.rows0(g, v)
  local sizes = { unpack(v.x.shape) }
  sizes[1] = v.index_n
  return values(g, v, sizes)
end
function place.selected(g, v)
  if not the_dimension(g, v) then return nil end
  local sizes = { unpack(v.x.shape) }
  table.remove(sizes, v.d + 1)
  return values(g, v, sizes)
end

--- An index for gather and scatter: x's shape, or less along d.
function place.places(g, v)
  if not the_dimension(g, v) or v.x.numel == 0 then return nil end
  local sizes = { unpack(v.x.shape) }
  if g.random:chance(0.5) then sizes[v.d + 1] = g.random:between(1, sizes[v.d + 1]) end
  v.places_sizes = sizes
  return g:sharded(("ints(%d, { %s }, %d)"):format(g:seed(), numbers(sizes), size_of(v.x, v.d)),
    sizes)
end
function place.placed(g, v) return v.places_sizes and values(g, v, v.places_sizes) or nil end

function place.m(g, v)
  local found = g.random:chance(0.4) and g:pick(function(info) return info.dtype == "bool"
    and same_shape(info, v.x) end)
  if found then return found.name end
  return g:sharded(("mask(%d, { %s })"):format(g:seed(), numbers(v.x.shape)), v.x.shape)
end

--- Classes for a loss on [rows, classes, ...].
function place.classes(g, v)
  local n = v.x.shape[2]
  if n == 0 then return nil end
  v.classes_n = n
  local sizes = { unpack(v.x.shape) }
  table.remove(sizes, 2)
  return g:sharded(("ints(%d, { %s }, %d)"):format(g:seed(), numbers(sizes), n), sizes)
end
--- A weight for each class of <classes>.
function place.class_weights(g, v)
  if not v.classes_n then return nil end
  local text = ("torch.arange(1, %d, { dtype = %s.dtype })"):format(v.classes_n + 1, v.x.name)
  return g:sharded(text, { v.classes_n })
end
--- Numbers of weights, below 3, for each row of x.
function place.experts(g, v)
  local sizes = { v.x.shape[1], g.random:between(1, 3) }
  return g:sharded(("ints(%d, { %s }, 3)"):format(g:seed(), numbers(sizes)), sizes)
end
--- A class below <w>'s first size for each row of x.
function place.row_classes(g, v)
  local n = v.new_size
  if not n or n == 0 then return nil end
  local sizes = { unpack(v.x.shape) }
  table.remove(sizes)
  return g:sharded(("ints(%d, { %s }, %d)"):format(g:seed(), numbers(sizes), n), sizes)
end
function place.size0(_, v) return tostring(v.x.shape[1]) end
place["size-1"] = function(_, v) return tostring(size_of(v.x, -1)) end

--- A dimension of an even size.
function place.even_d(g, v)
  return the_dimension(g, v) and size_of(v.x, v.d) % 2 == 0 and v.fixed.d or nil
end

--- The size of that dimension, and its half.
function place.whole(_, v) return tostring(size_of(v.x, v.d)) end
function place.half(_, v) return tostring(size_of(v.x, v.d) / 2) end

--- A number of groups of the channels. Those of one element have no variance, and gradients that
--- rounding alone decides.
function place.groups(g, v)
  local n, least = v.x.shape[2], v.x.numel == v.x.shape[1] * v.x.shape[2] and 2 or 1
  if n < least then return nil end
  local fitting = {}
  for _, each in ipairs { 1, 2, n } do
    if n % each == 0 and n / each >= least then fitting[#fitting + 1] = each end
  end
  return tostring(g.random:choice(fitting))
end

--- Tensors of the sizes that the row gives for <w> and <w2>.
local function weight(name)
  return function(g, v)
    local sizes = {}
    for i, size in ipairs(v.row[name]) do
      if size == "n" then
        v.new_size = v.new_size or g:size()
        sizes[i] = v.new_size
      elseif size == "d" then
        if not the_dimension(g, v) then return nil end
        sizes[i] = size_of(v.x, v.d)
      else
        sizes[i] = type(size) == "number" and size_of(v.x, size) or tonumber(size)
      end
    end
    local info = g:tensor(sizes, v.x.dtype)
    return info and info.name
  end
end
place.w, place.w2 = weight "w", weight "w2"

return place
