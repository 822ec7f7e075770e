--- Looks up fields and methods of values. It runs no code of the user: tables are read raw, and of
--- all `__index` functions only the engine's own are called.
local registry = require "redco.registry"
local torch = require "redco.torch"

local members = {}

local is_operator = {}
for _, name in ipairs(torch.operators()) do is_operator[name] = true end

local function is_native(f)
  return type(f) == "function" and debug.getinfo(f, "S").what == "C"
end

--- Calls visit(table) for a table and for the tables in its `__index` chain.
local function each_table(value, visit)
  for i = 1, 10 do  -- limited, because the chain may be a cycle
    if type(value) == "table" then visit(value) elseif i > 1 then return end
    local meta = debug.getmetatable(value)
    value = meta and rawget(meta, "__index")
  end
end

--- Returns the class name of an object of the engine, "Trainer"; nil for any other value.
function members.class(value)
  if torch.is_tensor(value) then return "Tensor" end
  local meta = type(value) == "userdata" and debug.getmetatable(value)
  if meta and is_native(rawget(meta, "__index")) and is_native(rawget(meta, "__tostring")) then
    return tostring(value):match "^%a+"
  end
end

--- Returns a field or method of a value, or nil.
function members.get(value, key)
  if members.class(value) then
    local ok, found = pcall(rawget(debug.getmetatable(value), "__index"), value, key)
    return ok and found or nil
  end
  if value == torch and is_operator[key] then return torch[key] end
  local found
  each_table(value, function(t)
    if found == nil then found = rawget(t, key) end
  end)
  return found
end

--- Evaluates a path such as "redco.nn.linear" or "x:sum" from the globals; returns nil if there is
--- no such value.
function members.resolve(path)
  local value = _G
  for name in path:gmatch "[^.:]+" do
    value = members.get(value, name)
    if value == nil then return nil end
  end
  return value
end

--- Returns the subjects under which `help` may know "x:sum": its value, the text itself, and
--- "Tensor:sum", from the class of x.
function members.subjects(path)
  local owner, name = path:match "^(.*)[.:]([^.:]*)$"
  local class = owner and members.class(members.resolve(owner))
  local found = { members.resolve(path) }
  found[#found + 1] = path
  found[#found + 1] = class and class .. ":" .. name
  return found
end

-- Returns whether an operator is a method: whether its `self` may be a tensor.
local function is_method(name)
  for _, schema in ipairs(torch.schemas(name)) do
    if schema:find "^[^(]*%(Tensor[^ ]* self" then return true end
  end
end

--- Lists the methods (`separator` is ":") or fields (".") of a class whose names begin with
--- `prefix`.
function members.of_class(class, separator, prefix)
  local found = {}
  local begins = class .. separator .. prefix
  for _, name in ipairs(registry.names()) do
    if name:sub(1, #begins) == begins then found[#found + 1] = name:sub(#class + 2) end
  end
  if class == "Tensor" and separator == ":" then
    for name in pairs(is_operator) do
      if name:sub(1, #prefix) == prefix and is_method(name) then found[#found + 1] = name end
    end
  end
  return found
end

--- Lists the fields of a value whose names begin with `prefix`; only functions if `separator` is
--- ":".
function members.names(value, separator, prefix)
  local class = members.class(value)
  if class then return members.of_class(class, separator, prefix) end
  local found = {}
  each_table(value, function(t)
    for key, field in next, t do
      if type(key) == "string" and key:sub(1, #prefix) == prefix
        and (separator == "." or type(field) == "function") then
        found[#found + 1] = key
      end
    end
  end)
  if value == torch then
    for name in pairs(is_operator) do
      if name:sub(1, #prefix) == prefix then found[#found + 1] = name end
    end
  end
  return found
end

return members
