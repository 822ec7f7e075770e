--- What values have by name. No code of the user's runs: tables are read raw, and of the functions
--- that answer for a missing field only the engine's own are called.
local registry = require "redco.registry"
local torch = require "redco.torch"

local members = {}

local is_operator = {}
for _, name in ipairs(torch.operators()) do is_operator[name] = true end

local function is_native(f)
  return type(f) == "function" and debug.getinfo(f, "S").what == "C"
end

--- Calls visit(table) for a table and for those that stand in for a value's missing fields.
local function each_table(value, visit)
  for i = 1, 10 do  -- of a chain that may be a ring
    if type(value) == "table" then visit(value) elseif i > 1 then return end
    local meta = debug.getmetatable(value)
    value = meta and rawget(meta, "__index")
  end
end

--- The name of the class of an engine's object, "Trainer"; nil for any other value.
function members.class(value)
  if torch.is_tensor(value) then return "Tensor" end
  local meta = type(value) == "userdata" and debug.getmetatable(value)
  if meta and is_native(rawget(meta, "__index")) and is_native(rawget(meta, "__tostring")) then
    return tostring(value):match "^%a+"
  end
end

--- The field or method of a value, or nil.
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

--- The value of "redco.nn.linear" or "x:sum", from the globals on; nil where there is none.
function members.resolve(path)
  local value = _G
  for name in path:gmatch "[^.:]+" do
    value = members.get(value, name)
    if value == nil then return nil end
  end
  return value
end

--- What help may know "x:sum" by: its value, what was written, and "Tensor:sum" by x's class.
function members.subjects(path)
  local owner, name = path:match "^(.*)[.:]([^.:]*)$"
  local class = owner and members.class(members.resolve(owner))
  local found = { members.resolve(path) }
  found[#found + 1] = path
  found[#found + 1] = class and class .. ":" .. name
  return found
end

-- An operator is a method where a tensor may be its `self`.
local function is_method(name)
  for _, schema in ipairs(torch.schemas(name)) do
    if schema:find "^[^(]*%(Tensor[^ ]* self" then return true end
  end
end

--- Names of the methods (`separator` is ":") or fields (".") of a class that begin with `prefix`.
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

--- Names of what a value has that begin with `prefix`: its functions where `separator` is ":".
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
