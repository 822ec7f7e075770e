--- Calls of operators for operator_fuzz: calls that work, with one to three arguments changed into
--- wild ones. A call is a text that prepare.lua's T makes tensors for, so that each can be
--- repeated.
local redco = require "redco"
local torch = redco.torch

local function T(dtype, sizes, values, kind)
  return { tensor = true, dtype = dtype, sizes = sizes, values = values, kind = kind }
end

-- By operator: the lists of arguments of calls that work.
local examples, names = {}, {}

local function add_example(line)
  local name, rest = line:match "^([%w_]+)(%b())$"
  if not name then return end
  local make = loadstring("return function(T, pack) return pack" .. rest .. " end")
  local pack = function(...) return { n = select("#", ...), ... } end
  if not examples[name] then
    examples[name] = {}
    names[#names + 1] = name
  end
  table.insert(examples[name], { make = make(), pack = pack })
end

local random = math.random
local function one_of(list) return list[random(#list)] end
local function chance(n) return random(n) == 1 end

local wild_integers = {
  -1, -2, -3, 0, 1, 2, 3, 4, 5, 7, 8, 16, 31, 64, 100, 255, 1000, 4096, 100000, 2 ^ 31 - 1, 2 ^ 31,
  -2 ^ 31, 2 ^ 32 + 1, 2 ^ 40, 2 ^ 53, -2 ^ 53, "0x7fffffffffffffffLL", "-0x7fffffffffffffffLL-1",
}
local wild_numbers = { 0, -1, 1, 0.5, 1e-30, 1e30, -1e300, 1e10, "0/0", "1/0", "-1/0" }
local dtypes = {
  "float32", "float64", "int64", "int32", "bool", "uint8", "int8", "int16", "float16", "bfloat16",
  "complex64", "complex128",
}
local sizes_of_dimensions = { 0, 1, 1, 2, 3, 4, 5, 8, 17, 64 }
local words = { "none", "mean", "sum", "max", "min", "prod", "reflect", "constant", "bogus", "" }
local kinds = { "transposed", "sliced", "expanded", "last", "channels_last" }

local function is_integral(dtype) return dtype:match "^u?int" ~= nil end

local function some_sizes()
  local sizes = {}
  for i = 1, random(0, 5) do sizes[i] = one_of(sizes_of_dimensions) end
  return sizes
end

local function some_tensor()
  return T(one_of(dtypes), some_sizes(), nil, chance(4) and one_of(kinds) or nil)
end

local function wild_values(t)
  local n = 1
  for _, size in ipairs(t.sizes) do n = n * size end
  if n > 64 then
    t.values, t.kind = { one_of(wild_integers), one_of(wild_integers) }, "range"
    return
  end
  local values = t.kind ~= "range" and t.values or {}
  for i = 1, n do values[i] = values[i] or random(-2, 6) end
  if chance(3) then
    for i = 1, n do values[i] = one_of(wild_integers) end
  elseif n > 0 then
    -- One past the end is the commonest mistake.
    local i = random(n)
    values[i] = chance(2) and one_of(wild_integers) or tonumber(values[i])
      and values[i] + random(-9, 9) or 0
  end
  t.values = values
end

local function change_tensor(t)
  local what = random(9)
  if what <= 3 and is_integral(t.dtype) then
    wild_values(t)
  elseif what <= 4 and #t.sizes > 0 then
    t.sizes[random(#t.sizes)] = one_of(sizes_of_dimensions)
    t.values = t.kind == "range" and t.values or nil
  elseif what == 5 then
    if chance(2) then table.insert(t.sizes, random(#t.sizes + 1), one_of(sizes_of_dimensions)) else
      table.remove(t.sizes, #t.sizes > 0 and random(#t.sizes) or nil)
    end
    t.values = t.kind == "range" and t.values or nil
  elseif what == 6 then
    t.dtype = one_of(dtypes)
  elseif what == 7 then
    t.kind, t.values = one_of(kinds), nil
  elseif what == 8 and not is_integral(t.dtype) then
    t.kind, t.values = one_of { "nan", "huge" }, nil
  else
    return some_tensor()
  end
  return t
end

local function change(value)
  if value == nil then return chance(2) and some_tensor() or one_of(wild_integers) end
  if type(value) == "number" then
    if chance(3) then return value + random(-2, 2) end
    return value % 1 == 0 and one_of(wild_integers) or one_of(wild_numbers)
  end
  if type(value) == "boolean" then return not value end
  if type(value) == "string" then
    for _, dtype in ipairs(dtypes) do if dtype == value then return one_of(dtypes) end end
    return one_of(words)
  end
  if value.tensor then return change_tensor(value) end
  if #value == 0 then
    for key, each in pairs(value) do
      if chance(2) then value[key] = change(each) end
    end
    if next(value) == nil then return { one_of(wild_integers) } end
    return value
  end
  local i = random(#value)
  local what = random(5)
  if what == 1 then
    table.remove(value, i)
  elseif what == 2 and type(value[i]) == "number" then
    table.insert(value, i, one_of(wild_integers))
  elseif what == 3 then
    value[i] = value[random(#value)]
  else
    value[i] = change(value[i])
  end
  return value
end

local function text_of(value)
  local kind = type(value)
  if kind == "number" then
    if value ~= value then return "0/0" end
    if value == math.huge then return "1/0" elseif value == -math.huge then return "-1/0" end
    return ("%.17g"):format(value)
  end
  if kind == "string" then
    if value:match "^-?0x" or value:match "/0$" then return value end
    return ("%q"):format(value)
  end
  if kind ~= "table" then return tostring(value) end
  local parts = {}
  if value.tensor then
    parts[1] = ("%q"):format(value.dtype)
    parts[2] = text_of(value.sizes)
    parts[3] = value.values and text_of(value.values) or value.kind and "nil"
    parts[4] = value.kind and ("%q"):format(value.kind)
    return "T(" .. table.concat(parts, ",") .. ")"
  end
  for i = 1, #value do parts[i] = text_of(value[i]) end
  local keys = {}
  for key in pairs(value) do if type(key) == "string" then keys[#keys + 1] = key end end
  table.sort(keys)
  for _, key in ipairs(keys) do parts[#parts + 1] = key .. "=" .. text_of(value[key]) end
  return "{" .. table.concat(parts, ",") .. "}"
end

-- An argument by its type in a schema.
local function by_type(type_name)
  if type_name:match "%?" and chance(2) then return nil end
  if type_name:match "^Tensor.*%[" then
    local list = {}
    for i = 1, random(0, 3) do list[i] = some_tensor() end
    return list
  end
  if type_name:match "^Tensor" then return some_tensor() end
  if type_name:match "^S?y?m?[iI]nt%[" then
    local list = {}
    for i = 1, random(0, 4) do list[i] = chance(3) and one_of(wild_integers) or random(0, 4) end
    return list
  end
  if type_name:match "^S?y?m?[iI]nt" then
    return chance(2) and random(0, 3) or one_of(wild_integers)
  end
  if type_name:match "^float%[" or type_name:match "^Scalar%[" then
    return { one_of(wild_numbers) }
  end
  if type_name:match "^float" or type_name:match "^Scalar"
    and not type_name:match "^ScalarType" then
    return chance(2) and random(0, 3) or one_of(wild_numbers)
  end
  if type_name:match "^bool%[" then return { chance(2), chance(2), chance(2) } end
  if type_name:match "^bool" then return chance(2) end
  if type_name:match "^str" then return one_of(words) end
  if type_name:match "^ScalarType" then return one_of(dtypes) end
  if type_name:match "^Layout" then return one_of { "strided", "sparse_coo" } end
  return nil
end

local function by_schema(schema)
  local arguments = { n = 0 }
  local named = {}
  local only_named = false
  -- The commas within `Tensor(a!)` and `int[2]` split nothing.
  local parameters = schema:match "%((.*)%) %->" or ""
  for each in parameters:gsub("%b[]", function(s) return (s:gsub(",", ";")) end)
    :gmatch "[^,]+" do
    local type_name, name, default = each:match "^%s*([^%s]+) ([%w_]+)(.*)$"
    if each:match "^%s*%*" then
      only_named = true
    elseif type_name and not (default ~= "" and chance(2)) then
      local value = by_type(type_name)
      if only_named then
        if value ~= nil then named[name] = value end
      else
        arguments.n = arguments.n + 1
        arguments[arguments.n] = value
      end
    elseif type_name then
      only_named = true
    end
  end
  if next(named) then
    arguments.n = arguments.n + 1
    arguments[arguments.n] = named
  end
  return arguments
end

local allowed

--- Reads the file of calls that work; `only` is a function of the names to call, or nil.
function start(lines, only)
  for line in lines:gmatch "[^\n]+" do add_example(line) end
  allowed = {}
  for _, name in ipairs(torch.operators()) do
    -- Internal operators trust their arguments.
    if name:sub(1, 1) ~= "_" and (not only or only(name)) then allowed[#allowed + 1] = name end
  end
  return #allowed, #names
end

--- The call of a seed: its text.
function next_call(seed, name)
  math.randomseed(seed)
  for _ = 1, 5 do random() end
  name = name or one_of(allowed)
  local known = examples[name]
  local arguments
  if known and not chance(10) then
    local example = one_of(known)
    arguments = example.make(T, example.pack)
    for _ = 1, chance(8) and 0 or random(3) do
      local i = random(math.max(1, arguments.n))
      arguments[i] = change(arguments[i])
      arguments.n = math.max(arguments.n, i)
    end
    if chance(8) and arguments.n > 1 then
      arguments[random(arguments.n)] = arguments[random(arguments.n)]
    end
  else
    arguments = by_schema(one_of(torch.schemas(name) or { "" }) or "")
  end
  local parts = {}
  for i = 1, arguments.n do parts[i] = text_of(arguments[i]) end
  return ("%s(%s)"):format(name, table.concat(parts, ", "))
end
