--- Generates stubs for the lua-language-server: files that declare all functions and never run.
local operator_stubs = require "redco.reference.operator_stubs"
local registry = require "redco.registry"
local surface = require "redco.reference.surface"
local types = require "redco.reference.types"

local stubs = {}

-- Operators of objects, besides their methods.
local abilities = {
  Tensor = [[
---@operator add(torch.Tensor|number): torch.Tensor
---@operator sub(torch.Tensor|number): torch.Tensor
---@operator mul(torch.Tensor|number): torch.Tensor
---@operator div(torch.Tensor|number): torch.Tensor
---@operator mod(torch.Tensor|number): torch.Tensor
---@operator pow(torch.Tensor|number): torch.Tensor
---@operator unm: torch.Tensor
---@operator len: integer
---@field [integer|table|torch.Tensor] torch.Tensor
]],
  Dataset = "---@operator len: integer\n---@field [integer] any\n",
  Tokenizer = "---@operator len: integer\n",
  ["redco.help"] = "---@overload fun(value?: any)\n",
}

local is_class = {}
for _, name in pairs(types.classes) do is_class[name] = true end

-- Returns the type name of a module or class. A module may have the name of its class.
local function type_name(group)
  return types.classes[group] or is_class[group] and group .. ".static" or group
end

-- Formats a text as comment lines.
local function comment(text)
  return (text:gsub("[^\n]+", "---%0"):gsub("\n\n", "\n---\n")) .. "\n"
end

local function annotation(argument, class)
  local words = types.of_argument(argument)
  return words and types.annotation(words, class) or "any"
end

local function remark(text)
  return text and " " .. text:gsub("\n", " ") or ""
end

--- Declares the table of named arguments of a function. Returns the declaration and its type name;
--- "" and nil if there are none.
local function named_arguments(full_name, read)
  if read.is_list then return "", annotation(read.arguments[1]) .. "[]" end
  local fields = {}
  for _, argument in ipairs(read.arguments) do
    if argument.is_named then
      fields[#fields + 1] = ("---@field %s%s %s%s\n"):format(argument.name,
        argument.default and "?" or "", annotation(argument), remark(argument.text))
    end
  end
  if #fields == 0 then return "" end
  local name = full_name:gsub(":", ".") .. ".arguments"
  return ("---@class (exact) %s\n%s\n"):format(name, table.concat(fields)), name
end

local function requires_named(read)
  for _, argument in ipairs(read.arguments) do
    if argument.is_named and not argument.default then return true end
  end
  return false
end

-- Returns the parameters of a function: their names, and a list of {name, type, remark}.
local function parameters(read, named, class)
  local names, all = {}, {}
  for _, argument in ipairs(read.arguments) do
    if not argument.is_named and argument.name ~= "self" then
      names[#names + 1] = argument.name
      all[#all + 1] = { argument.name .. (argument.default and "?" or ""),
        argument.name == "..." and "any" or annotation(argument, class),
        remark(argument.text or argument.shape) }
    end
  end
  if named then
    -- `...` can only be the last.
    local place = names[#names] == "..." and #names or #names + 1
    table.insert(names, place, "arguments")
    table.insert(all, place, { "arguments" .. (requires_named(read) and "" or "?"), named, "" })
  end
  return names, all
end

-- Declares a function or a method in the table `variable`.
local function declare(full_name, variable)
  local read, owner = surface.read(full_name), surface.owner(full_name)
  local class = type_name(owner)
  local before, named = named_arguments(full_name, read)
  local names, all = parameters(read, named, class)
  local lines = { before, comment(table.concat(read.paragraphs, "\n\n")) }
  for _, parameter in ipairs(all) do
    lines[#lines + 1] = ("---@param %s %s%s\n"):format(unpack(parameter))
  end
  for _, words in ipairs(read.results) do
    local type = types.annotation(words, class) or "any"
    local rest = words:find "^what " and " ..." or ""  -- all results of another function
    lines[#lines + 1] = ("---@return %s%s%s\n"):format(type, rest,
      type == words and "" or " # " .. words)
  end
  lines[#lines + 1] = ("function %s%s(%s) end\n"):format(variable, full_name:match "[.:][^.:]+$",
    table.concat(names, ", "))
  return table.concat(lines)
end

-- Declares the call of an object itself.
local function overload(full_name)
  local read = surface.read(full_name)
  local before, named = named_arguments(full_name, read)
  local _, all = parameters(read, named)
  local listed, returned = {}, {}
  for i, parameter in ipairs(all) do listed[i] = parameter[1] .. ": " .. parameter[2] end
  for i, words in ipairs(read.results) do returned[i] = types.annotation(words) or "any" end
  return before, ("---@overload fun(%s): %s\n"):format(table.concat(listed, ", "),
    table.concat(returned, ", "))
end

local function variable_of(group)
  return group:match "[^.]+$" .. (is_class[group] and "Static" or "")
end

-- Returns the name by which `require` finds a module, or nil if it is only a field of another.
local function required_name(module)
  for name, value in pairs(package.loaded) do
    if rawequal(value, module) and name:find "^redco" and name ~= "redco.torch.native" then
      return name
    end
  end
end

local function fields_of(group, modules)
  local read, fields = surface.read(group), {}
  for _, field in ipairs(read.kind == "class" and read.arguments or {}) do
    fields[#fields + 1] = ("---@field %s %s%s\n"):format(field.name, annotation(field),
      remark(field.text))
  end
  for _, full_name in ipairs(surface.members(group)) do
    local property = surface.read(full_name)
    if property.kind == "property" then
      fields[#fields + 1] = ("---@field %s %s %s\n"):format(property.name,
        types.annotation(property.type), surface.summary(property))
    end
  end
  local inner = {}
  for key, value in pairs(modules[group] or {}) do
    local _, name = registry.text(value)
    if type(value) == "table" and name and surface.is_group(name) then
      inner[#inner + 1] = ("---@field %s %s\n"):format(key, type_name(name))
    elseif type(value) == "string" then
      inner[#inner + 1] = ("---@field %s string\n"):format(key)
    end
  end
  table.sort(inner)
  return table.concat(fields) .. table.concat(inner)
end

local function declare_group(group, modules)
  local read, variable = surface.read(group), variable_of(group)
  local before, call, functions = "", "", {}
  for _, full_name in ipairs(surface.members(group)) do
    if full_name:find "__call$" then
      before, call = overload(full_name)
    elseif surface.read(full_name).kind == "function" then
      functions[#functions + 1] = declare(full_name, variable)
    end
  end
  local head = comment(table.concat(read.paragraphs, "\n\n")) .. "---@class " .. type_name(group)
    .. "\n" .. fields_of(group, modules) .. (abilities[group] or "") .. call
  return ("%s%slocal %s = {}\n\n%s"):format(before, head, variable, table.concat(functions, "\n"))
end

--- Returns all files, text by path: `require "redco.nn"` finds redco/nn.lua.
function stubs.files()
  local files, modules = {}, surface.modules()
  for _, page in ipairs(surface.pages) do
    local parts, module = {}, modules[page[2]] and required_name(modules[page[2]])
    for i = 2, #page do parts[#parts + 1] = declare_group(page[i], modules) end
    if module then parts[#parts + 1] = "return " .. variable_of(page[2]) .. "\n" end
    local path = page[1] == "redco" and "redco.lua" or "redco/" .. page[1] .. ".lua"
    files[path] = ("---@meta %s\n\n%s"):format(module or "_", table.concat(parts, "\n"))
  end
  for path, text in pairs(operator_stubs()) do files[path] = text end
  return files
end

return stubs
