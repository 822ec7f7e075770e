--- Stubs of ATen's operators, as functions of torch and methods of tensors.
local operators = require "redco.reference.operators"
local registry = require "redco.registry"
local torch = require "redco.torch"
local types = require "redco.reference.types"

local keywords = {}
for word in ([[and break do else elseif end false for function goto if in local nil not or repeat
  return then true until while]]):gmatch "%a+" do keywords[word] = true end

local function annotation(words)
  return types.annotation(words) or "any"
end

-- Declares one way to call an overload: arguments with defaults by name, or by position.
local function overload(read, by_place)
  local positional, named, returned = {}, {}, {}
  for _, argument in ipairs(read.arguments) do
    local is_named = argument.is_named and not (by_place and argument.can_be_positional)
    local list = is_named and named or positional
    list[#list + 1] = argument.name .. (argument.is_optional and "?: " or ": ")
      .. annotation(argument.type)
  end
  if read.takes_out then named[#named + 1] = "out?: any" end
  if #named > 0 then
    positional[#positional + 1] = "named?: {" .. table.concat(named, ", ") .. "}"
  end
  for i, words in ipairs(read.results) do returned[i] = annotation(words) end
  return ("---@overload fun(%s)%s\n"):format(table.concat(positional, ", "),
    #returned > 0 and ": " .. table.concat(returned, ", ") or "")
end

local function has(arguments, field, value)
  for _, argument in ipairs(arguments) do
    if argument[field] == value then return true end
  end
  return false
end

-- Declares an operator as a function and, if an argument is `self`, as a method, unless the
-- registry has one of that name.
local function declare(name)
  local operator = operators.read(name)
  local plain = operators.plain(operator)
  local overloads, is_method, self_is_first = {}, false, true
  for _, read in ipairs(plain) do
    read.takes_out = not read.is_out and #plain < #operator.overloads
    overloads[#overloads + 1] = overload(read, false)
    if has(read.arguments, "can_be_positional", true) then
      overloads[#overloads + 1] = overload(read, true)
    end
    if has(read.arguments, "name", "self") then
      is_method = true
      self_is_first = self_is_first and read.arguments[1].name == "self"
    end
  end
  local index = keywords[name] and ('["%s"]'):format(name) or "." .. name
  local is_own = registry.text("torch." .. name) ~= nil
  local is_own_method = registry.text("Tensor:" .. name) or registry.text("Tensor." .. name)
  local lines = {}
  if not is_own then
    lines[1] = table.concat(overloads) .. "torch" .. index .. " = function(...) end\n"
  end
  if is_method and not is_own_method then
    lines[#lines + 1] = "Tensor" .. index .. " = "
      .. (self_is_first and not is_own and "torch" .. index or "function(...) end") .. "\n"
  end
  return table.concat(lines)
end

local head = [[
---@meta _
-- ATen's operators, from their schemas.

---@class torch
local torch = {}
---@class torch.Tensor
local Tensor = {}

]]

-- The language server reads no file of more than 500 kB.
local most_bytes = 300e3

--- Returns the files, text by path.
return function()
  local files, parts, size, n = {}, {}, 0, 0
  local function finish()
    n = n + 1
    files[("redco/operators_%d.lua"):format(n)] = head .. table.concat(parts)
    parts, size = {}, 0
  end
  for _, name in ipairs(torch.operators()) do
    local text = declare(name)
    if size + #text > most_bytes then finish() end
    parts[#parts + 1] = text
    size = size + #text
  end
  finish()
  return files
end
